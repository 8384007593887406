"""Polls of queues, and a buffer of messages that Celery has not taken yet."""
