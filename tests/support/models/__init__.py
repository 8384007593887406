"""Models: the package's own parts, driven by any step at any time, with what must always hold."""
