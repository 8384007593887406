"""kombu's virtual transport on SQS: connections, channels, messages and the wire format."""
