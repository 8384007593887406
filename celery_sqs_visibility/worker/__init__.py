"""Changes to a Celery worker: bootsteps, requests, pools, start and end."""
