"""Calls of a task that wait for the end of Django's transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery_sqs_visibility.task.generic import GenericTask, P, R_co


class OnCommitTask(GenericTask[P, R_co]):
    """A task that may be called when a transaction commits."""

    abstract = True

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `delay` when Django's transaction commits, never if it rolls back; at once outside of one."""
        _on_commit(partial(self.delay, *args, **kwargs))

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call `apply_async` when Django's transaction commits, as `delay_on_commit`."""
        _on_commit(partial(self.apply_async, *args, **kwargs))


def _on_commit(publish: Callable[[], object]) -> None:
    """Celery's Django fixup gives this to tasks of its own class only (celery/contrib/django/task.py)."""
    from django.db import transaction  # noqa: PLC0415 - an app without Django never comes here

    transaction.on_commit(publish)
