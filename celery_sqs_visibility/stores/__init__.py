"""Stores of the keys of exclusive tasks: a port and its implementations."""
