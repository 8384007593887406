"""Health of a worker: its facts, and the probe that asks for them."""
