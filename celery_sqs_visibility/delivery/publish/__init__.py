"""Sending messages in batches."""
