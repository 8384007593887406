"""The task base class, and how a run of it ends."""

from celery_sqs_visibility.task.base import VisibilityTask

__all__ = ["VisibilityTask"]
