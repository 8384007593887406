"""What a worker counts, and how Prometheus, OpenTelemetry and CloudWatch get it."""
