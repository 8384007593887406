"""Remote control over SQS: commands to workers, replies, events; imported only where it is on."""
