"""kombu's virtual transport on SQS: connections, channels, messages, wire format."""
