"""Messages held: the ledger, the heartbeat that extends them, the index of their redeliveries."""
