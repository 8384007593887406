"""Messages held: the ledger, its leases, the heartbeat that extends them."""
