"""A request that settles its message, for every end that its run may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from celery.worker.request import Request

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.settlements import Delete, Release, Settlement
from celery_sqs_visibility.events import Finished, emit, has_listener
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker.backoff import after_rejection

DELETE: Final = Delete()


class SettlingRequest(Request):
    """A request that settles its delivery, if it has one.

    It does so directly and not through the event loop, which may be blocked (solo), or stopped while the pool
    is being joined (threads). Any thread; no I/O.
    """

    # Celery's, which its stubs leave out.
    acknowledged: bool
    message: Message
    delivery: Delivery | None = None
    _rejected_by_task = False
    _request_dict: dict[str, Any]

    def acknowledge(self) -> None:
        """Done: delete the message."""
        if (delivery := self.delivery) is None:
            super().acknowledge()
        elif not self.acknowledged:
            if has_listener(Finished) and delivery.current.started:
                emit(Finished(delivery.facts))
            self.acknowledged = True
            delivery.settle(DELETE)

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Release it or give it up, as the task's `Reject` says. A rejection of Celery's comes back later."""
        if self.delivery is None:
            super().reject(requeue)
        elif not self.acknowledged:
            if self._rejected_by_task and requeue:
                self.settle(Release())
            elif (backoff := after_rejection(self.delivery, self.task)) is not None:
                self.settle(backoff)
            elif self._rejected_by_task:
                self.give_up("rejected by the task")
            else:
                self.come_back_later()  # at once, it could kill one worker after the other
            self.send_event("task-rejected", requeue=requeue)

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's
        """As Celery's, where anybody hears of tasks: a worker may send nothing but its own heartbeats."""
        groups = getattr(self.eventer, "groups", None)
        if not groups or "task" in groups:
            super().send_event(type, **fields)

    def settle(self, settlement: Settlement) -> None:
        """Settle the message; Celery takes it for acknowledged from now on."""
        self.acknowledged = True
        if self.delivery is not None:
            self.delivery.settle(settlement)

    def note_outcome(self, outcome: str) -> None:
        """How the run ended, should its message be deleted: what metrics count."""
        if self.delivery is not None:
            self.delivery.current.outcome = outcome

    def come_back_later(self) -> None:
        """Hide the message as after an error about which the task says nothing, unless it is settled."""
        if self.delivery is not None and not self.acknowledged:
            self.settle(self.delivery.after_an_error())

    def give_up(self, reason: str, **attributes: str) -> None:
        """Send it to the dead letters, if there are any, and delete it."""
        self.acknowledged = True
        self.message.give_up(reason, getattr(self.task, "on_exhausted", None), **attributes)

    @property
    def visibility_timeout(self) -> int | None:
        """The queue's, in seconds; `None` without a delivery."""
        if (delivery := self.delivery) is None:
            return None
        return delivery.holder.options.for_queue(delivery.queue.name).visibility_timeout

    def put_off(self, eta: float) -> bool:
        """Have it wait in SQS until `eta`, in seconds since the epoch, as a copy; whether it can."""
        renew = self.message.renewal(eta, self._published_retries)
        if renew is None:
            return False
        self.settle(renew)
        return True

    @property
    def _published_retries(self) -> int:
        """The attempts that messages before this one have used up."""
        return self._request_dict.get("retries") or 0

    @contextmanager
    def _settled_if_it_raises(self) -> Iterator[None]:
        """Celery would leave the message unacknowledged after an error of its own: extended for 12 hours."""
        try:
            yield
        except Exception:
            self.come_back_later()
            raise
