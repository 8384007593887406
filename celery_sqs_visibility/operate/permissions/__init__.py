"""`celery -A proj sqs policy`: the least permissions of an app's workers and producers."""
