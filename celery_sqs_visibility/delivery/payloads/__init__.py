"""Payloads in S3: put there before their messages, removed after them."""
