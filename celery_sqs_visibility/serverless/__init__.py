"""Tasks in AWS Lambda, from an SQS event source mapping: no worker, no polls, no heartbeat."""
