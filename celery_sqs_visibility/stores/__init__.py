"""Where workers agree on the keys of exclusive tasks: a port, and its implementations."""
