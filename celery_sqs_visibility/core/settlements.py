"""Ways to settle a delivery."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.errors import SQSError


@dataclass(frozen=True, slots=True)
class Delete:
    """Done. Its payload is kept where another message has its place, or had, and needs that."""

    keeps_payload: bool = False


class Why(enum.Enum):
    """Why a message is hidden, as events and measurements tell."""

    RETRIED = "its run failed, and is tried again"
    KEPT = "it is given up, and is not run when it comes back"
    PARKED = "its ETA is to come"
    RATE = "its rate limit lets it run later"
    KEY = "its exclusive key is taken"
    PAUSE = "its task is paused"
    RELEASED = "it is given back, not run to its end"


@dataclass(frozen=True, slots=True)
class Hide:
    """Come back in `seconds`, whole ones, clamped to the horizon; 0 is at once."""

    seconds: int
    why: Why = Why.RETRIED


RELEASE: Final = Hide(0, Why.RELEASED)


@dataclass(frozen=True, slots=True)
class Lapse:
    """Failed: come back when the visibility timeout runs out. Costs no request."""


class Purpose(enum.Enum):
    """What the messages are that take a message's place."""

    RENEWAL = "a copy that goes on waiting: SQS counts its receives and its age anew"
    RECORDS = "the records of an event, a message each"
    DEAD_LETTER = "a copy in the dead-letter queue"


@dataclass(frozen=True, slots=True)
class Hold:
    """Celery holds the message, as `payload`, until its ETA: there is no other way to wait."""

    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Forward:
    """Send `messages` in its place, then delete it.

    The message stays held until SQS has answered for all of them.

    Attributes:
        purpose: of the messages.
        messages: each is made when it is asked for.
        otherwise: how to settle the message instead, once SQS has refused one of them for good. Not called
            under a lock.
        remainder: makes the one message that stands for those at the given indices, in order; `None` where
            there can be none.
        reason: why it is given up, of a dead letter.
        why: what it waits for, of a renewal.
    """

    purpose: Purpose
    messages: Sequence[OutgoingMessage]
    otherwise: Callable[[SQSError], Settlement | Hold]
    remainder: Callable[[Sequence[int]], OutgoingMessage | None] = lambda _indices: None
    reason: str = ""
    why: Why = Why.PARKED


#: Settlements that send nothing before.
Direct = Delete | Hide | Lapse

Settlement = Direct | Forward
