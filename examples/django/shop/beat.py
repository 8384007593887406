"""django-celery-beat's scheduler for several beats: `celery -A shop beat -S shop.beat:Scheduler`."""

from django_celery_beat.schedulers import DatabaseScheduler

from celery_sqs_visibility.beat import SendsOnce


class Scheduler(SendsOnce, DatabaseScheduler):
    """Sends each periodic task once where it goes to a FIFO queue."""
