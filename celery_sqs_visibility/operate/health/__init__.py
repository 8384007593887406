"""Health: what a worker says of itself, and the probe that asks it."""
