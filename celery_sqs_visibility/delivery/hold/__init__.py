"""What this process holds: the ledger, its leases, and the heartbeat that extends them."""
