"""`celery -A proj sqs queues`: the queues of an app, made or written down."""
