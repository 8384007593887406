"""State of held messages and the decisions about them: no lock, thread, clock, I/O, Celery or boto3."""
