"""How the queues are, and the workers: `celery -A proj sqs status`."""
