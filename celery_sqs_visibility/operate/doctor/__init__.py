"""`celery -A proj sqs doctor`: facts are gathered, checks are pure, findings say what to paste."""
