"""`celery -A proj sqs policy`: the least rights of an app's workers and producers."""
