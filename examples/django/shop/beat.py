"""django-celery-beat's scheduler for several beats: `celery -A shop beat -S shop.beat:Scheduler`."""

from celery_sqs_visibility.beat import SendsOnce
from django_celery_beat.schedulers import DatabaseScheduler


class Scheduler(SendsOnce, DatabaseScheduler):
    """Sends each periodic task once where it goes to a FIFO queue."""
