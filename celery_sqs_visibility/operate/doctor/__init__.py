"""`celery -A proj sqs doctor`: gathers facts, runs pure checks on them, and prints findings with remedies."""
