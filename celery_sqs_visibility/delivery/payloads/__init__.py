"""Payloads in S3: stored before their messages are sent, removed after the messages are deleted."""
