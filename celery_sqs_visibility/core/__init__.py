"""What the process holds of SQS: decisions only, without a lock, a thread, a clock, I/O, Celery or boto3."""
