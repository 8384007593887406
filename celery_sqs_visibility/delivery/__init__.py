"""What this process holds from SQS, and what it does about it: receive, extend, settle, give back."""
