"""What people and their tools see of workers and queues, and steer: commands, health, metrics."""
