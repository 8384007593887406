"""`celery -A proj sqs queues`: the queues of an app, created or written as a template."""
