"""`celery -A proj sqs dead-letters`: look at dead letters, send them back, delete them."""
