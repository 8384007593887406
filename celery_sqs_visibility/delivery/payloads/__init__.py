"""Payloads in S3: put there before their messages are sent, removed after these are deleted."""
