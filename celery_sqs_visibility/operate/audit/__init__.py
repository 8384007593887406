"""`celery sqs audit`: accounts for every message in the JSON logs of a fleet."""
