"""A delivery, and the ways to settle it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.events import Facts
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON


@dataclass(frozen=True, slots=True)
class Delete:
    """Done."""


@dataclass(frozen=True, slots=True)
class Hide:
    """Failed: come back in that many whole seconds, clamped to the horizon."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Lapse:
    """Failed: come back when the visibility timeout runs out. Costs no request."""


@dataclass(frozen=True, slots=True)
class Park:
    """Not due yet: come back in that many whole seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Release:
    """Not run: visible again now."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Given up: to the dead-letter queue as `body` with `attributes`, then delete.

    Without a dead-letter queue, or without leave to send there, `otherwise` is done instead.
    """

    reason: str
    body: str
    otherwise: Settlement
    attributes: Mapping[str, str] = field(default_factory=dict)


Settlement = Delete | Hide | Lapse | Park | Release | DeadLetter


class Delivery:
    """One receipt of one message.

    Its mutable fields are guarded by the lock of the ledger that holds it.

    Attributes:
        queue: where it came from.
        handle: the receipt handle, which is also kombu's delivery tag.
        facts: which delivery it is, for events.
        deadline: the monotonic instant at which its visibility lapses.
        horizon: the monotonic instant beyond which SQS refuses to extend it.
        started: whether a pool runs it.
        dispatched: whether it was given to a pool that may run it any moment.
        lost: whether the deadline passed or the handle was refused.
        extending: whether an extension of it is in flight.
        waiting: the settlement that waits for that extension to return.
        slot: where the extension wheel keeps it.
    """

    __slots__ = (
        "__weakref__",
        "_settle",
        "deadline",
        "dispatched",
        "extending",
        "facts",
        "handle",
        "horizon",
        "lost",
        "queue",
        "slot",
        "started",
        "waiting",
    )

    def __init__(
        self,
        queue: Queue,
        handle: str,
        facts: Facts,
        received_at: float,
        deadline: float,
        settle: Callable[[Delivery, Settlement], bool],
    ) -> None:
        self.queue = queue
        self.handle = handle
        self.facts = facts
        self.deadline = deadline
        self.horizon = received_at + VISIBILITY_HORIZON
        self.started = False
        self.dispatched = False
        self.lost = False
        self.extending = False
        self.waiting: Settlement | None = None
        self.slot: float | None = None
        self._settle = settle

    def belongs_to(self, settle: Callable[[Delivery, Settlement], bool]) -> bool:
        """Whether it was made with that way to settle: whether it is that depot's."""
        return self._settle == settle

    def settle(self, settlement: Settlement) -> bool:
        """Do that with it, once and for all; the call returns at once and the threads do the rest.

        Returns:
            Whether it was still ours to settle; a second settlement does nothing.
        """
        return self._settle(self, settlement)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "started" if self.started else "held"
        return f"<Delivery {self.facts.message_id} of {self.queue.name!r}: {state}>"
