"""What a Celery worker on this transport does otherwise: requests, bootsteps, start and end."""
