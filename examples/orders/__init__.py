"""A project whose tests run real workers on SQS by pytest-celery: see docs/testing.md."""
