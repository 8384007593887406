"""Batches of messages to send."""
