"""Celery's tutorial project, on Amazon SQS: `celery -A proj worker`."""
