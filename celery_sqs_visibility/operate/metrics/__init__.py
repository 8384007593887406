"""Metrics of a worker, and their export to Prometheus, OpenTelemetry and CloudWatch."""
