"""Events for metrics, made only if somebody subscribes.

They are no `events.DeliveryEvent`, so that the log and other listeners to deliveries do not get them.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_sqs_visibility.events import DeliveryFacts, Event


@dataclass(frozen=True, slots=True)
class ReceiveEnded(Event):
    """SQS answered a receive from a queue: `asked` messages were asked for, and `messages` came."""

    queue: str
    asked: int
    messages: int


@dataclass(frozen=True, slots=True)
class ExtensionEnded(Event):
    """A message of a queue was extended, `late` seconds after that was due."""

    queue: str
    late: float


@dataclass(frozen=True, slots=True)
class DeliveryEnded(Event):
    """A message's end is decided: see `core.endings`. Once a delivery.

    Attributes:
        outcome: "succeeded", "retried", "failed", "lost", "released", "skipped", "delayed" or "discarded".
        held: seconds since the receive.
        ran: seconds since its run began; `None` if it did not run.
    """

    delivery: DeliveryFacts
    outcome: str
    held: float
    ran: float | None


@dataclass(frozen=True, slots=True)
class SettlementEnded(Event):
    """SQS was told what becomes of a message, `seconds` after that was decided."""

    delivery: DeliveryFacts
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplyDropped(Event):
    """A reply to a command of remote control did not reach its caller: it has gone, or SQS refused."""
