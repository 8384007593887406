"""Pure decisions and options: no I/O, no clock, no lock."""
