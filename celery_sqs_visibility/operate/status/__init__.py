"""`celery -A proj sqs status`: queues from SQS and CloudWatch, workers by remote control."""
