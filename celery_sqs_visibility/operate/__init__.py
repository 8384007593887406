"""Views and controls for operators: commands, health, metrics."""
