"""`celery -A proj sqs status`: state of queues and workers."""
