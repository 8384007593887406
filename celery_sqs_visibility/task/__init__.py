"""The task base class: retries, settings, tracing of runs."""

from celery_sqs_visibility.task.base import VisibilityTask

__all__ = ["VisibilityTask"]
