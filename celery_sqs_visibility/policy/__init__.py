"""Decisions without I/O and without a clock: options, delays, polling, prefetch, parking."""
