"""`celery sqs audit`: accounts for every message that the JSON logs of a fleet tell of."""
