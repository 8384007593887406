"""Numbers of a worker, and their way to Prometheus, OpenTelemetry and CloudWatch."""
