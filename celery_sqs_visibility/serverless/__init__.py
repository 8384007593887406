"""Tasks in AWS Lambda: no worker, no polls, no heartbeat."""
