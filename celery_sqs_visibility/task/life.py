"""From when to when a run has to show life, of a task with an `inactivity_timeout`. Where it runs."""

from __future__ import annotations

from typing import Any

from celery_sqs_visibility.delivery.lease import UNWATCHED
from celery_sqs_visibility.delivery.lease_table import find_lease
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK


def begin_watch(lease_key: Any) -> None:
    """The run begins."""
    if (lease := find_lease(lease_key)) is not None:
        lease.last_sign = SYSTEM_CLOCK.monotonic()


def end_watch(lease_key: Any) -> None:
    """The task's own code is over: what Celery does now shows no life."""
    if (lease := find_lease(lease_key)) is not None:
        lease.last_sign = UNWATCHED
