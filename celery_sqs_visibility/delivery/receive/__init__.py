"""Polls of queues, and the buffer of messages for Celery."""
