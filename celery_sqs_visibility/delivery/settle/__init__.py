"""How deliveries end: deleted, hidden, parked, released, rejected, dead-lettered."""
