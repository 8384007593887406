"""Amazon SQS: the only floor that knows boto3."""
