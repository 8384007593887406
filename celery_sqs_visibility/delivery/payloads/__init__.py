"""Payloads in S3: put there before their messages, fetched while these are held, removed after them."""
