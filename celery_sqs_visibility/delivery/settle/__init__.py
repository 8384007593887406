"""Ends of deliveries: deleted, hidden, parked, released, rejected, dead-lettered."""
