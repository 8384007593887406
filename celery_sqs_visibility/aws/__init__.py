"""Amazon's services behind ports of our own; nothing else imports boto3."""
