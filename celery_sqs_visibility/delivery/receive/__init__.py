"""Polling queues, and what the polls bring until Celery takes it."""
