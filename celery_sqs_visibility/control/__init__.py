"""Remote control over SQS: commands to workers, replies, events. Imported only if it is on."""
