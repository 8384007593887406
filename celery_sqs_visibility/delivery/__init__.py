"""Messages that this process holds: received, extended, settled, given back."""
