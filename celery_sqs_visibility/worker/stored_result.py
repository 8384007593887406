"""What the result backend has of a task: the outcome of a run that could not report to its worker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from celery import Task, states
from celery.canvas import maybe_signature
from celery.exceptions import NotRegistered

from celery_sqs_visibility.contacts.app import chord_claim_of
from celery_sqs_visibility.delivery.model import Delivery

#: The address of Celery's backend that sends results to their callers.
RPC: Final = "rpc://"


class StoredResult:
    """One task's stored state; all attributes are empty where it is not known.

    Attributes:
        status: one of `celery.states`, or `None`.
        error: the exception of a failure.
        traceback: of a failure.
        done_at: when the outcome was stored, in seconds since the epoch.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self.status: str | None = meta.get("status")
        result = meta.get("result")
        self.error = result if isinstance(result, BaseException) else None
        self.traceback = meta.get("traceback") or ""
        self.done_at = _seconds(meta.get("date_done"))

    @classmethod
    def read(cls, task: Task[Any, Any], task_id: str) -> StoredResult:
        """Ask the task's result backend, which costs the calling thread a moment. Never raises."""
        backend = task.backend
        if backend.as_uri() == RPC:  # asking would make a queue, and only the caller has the result
            return cls({})
        try:
            return cls(backend.get_task_meta(task_id, cache=False))
        except Exception:  # noqa: BLE001 - no result backend, or none that answers
            return cls({})

    def is_failure_of(self, delivery: Delivery) -> bool:
        """Whether the message of this delivery is the one that failed for good.

        A message that was moved to or from a dead-letter queue has the task id of one that failed before. In
        doubt it is run: an unknown time decides nothing, and no clock is taken to be wrong. Nor has it failed
        where a worker of kombu's own SQS transport did not know its task, which Celery stores as a failure
        (celery/worker/consumer/consumer.py: `on_unknown_task`).
        """
        first = 0.0 if delivery.moved_from else delivery.facts.first_received
        if self.status != states.FAILURE or self.done_at is None or not first:
            return False
        if isinstance(self.error, NotRegistered):
            return False
        return self.done_at > first


def chord_claim_seconds(task: Task[Any, Any], chord: Any) -> float:
    """For how long a lost run may keep others from publishing the body of its chord.

    Celery 5.7 has a claim on that (celery/backends/redis.py: `on_chord_part_return`): a second run does
    nothing while it lasts, and does not say so.
    """
    if not chord:
        return 0.0
    if (expires := chord_claim_of(task.backend)) is None:
        return 0.0
    join_timeout = max(5, int((task.app.conf.result_chord_join_timeout or 5.0) * 2))
    return float(join_timeout + expires(join_timeout, maybe_signature(chord, app=task.app)))


def _seconds(done: Any) -> float | None:
    """A `date_done` in seconds since the epoch; `None` if it is no time.

    Celery's backends store UTC; SQL and MongoDB drop the zone (celery/backends/database/models.py).
    """
    if isinstance(done, str):
        try:
            done = datetime.fromisoformat(done.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(done, datetime):
        return None
    return (done if done.tzinfo else done.replace(tzinfo=timezone.utc)).timestamp()
