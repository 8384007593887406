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
    """Delete the message. `keeps_payload` leaves its payload in S3 for a copy that needs it."""

    keeps_payload: bool = False


class Why(enum.Enum):
    """Why a message is hidden; events and metrics tell."""

    RETRIED = "its run failed, and is tried again"
    KEPT = "it is given up, and is not run when it comes back"
    PARKED = "its ETA is to come"
    RATE = "its rate limit lets it run later"
    KEY = "its exclusive key is taken"
    PAUSE = "its task is paused"
    BRAKE = "what its task depends on fails"
    RELEASED = "it is given back, not run to its end"


@dataclass(frozen=True, slots=True)
class Hide:
    """Make it visible in `seconds`, an integer, at most up to the horizon; 0 is at once."""

    seconds: int
    why: Why = Why.RETRIED


RELEASE: Final = Hide(0, Why.RELEASED)


@dataclass(frozen=True, slots=True)
class Lapse:
    """Let it come back when its visibility timeout runs out, as after a failure. Costs no request."""


class Purpose(enum.Enum):
    """What the messages are that replace a message."""

    RENEWAL = "a copy that goes on waiting: SQS counts its receives and its age anew"
    RECORDS = "the records of an event, a message each"
    DEAD_LETTER = "a copy in the dead-letter queue"


@dataclass(frozen=True, slots=True)
class Hold:
    """Let Celery hold the message, as `payload`, until its ETA, because it can't wait in SQS."""

    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Forward:
    """Send `messages`, then delete the original.

    The original stays held until SQS has answered for all of them.

    Attributes:
        purpose: of the messages.
        messages: made one by one, as they are asked for.
        otherwise: returns how to settle the original if SQS refuses one of them for good. Not called under a
            lock.
        remainder: makes one message that stands for those at the given indices; `None` if there can be none.
        reason: why a dead letter is given up.
        why: what a renewal waits for.
    """

    purpose: Purpose
    messages: Sequence[OutgoingMessage]
    otherwise: Callable[[SQSError], Settlement | Hold]
    remainder: Callable[[Sequence[int]], OutgoingMessage | None] = lambda _indices: None
    reason: str = ""
    why: Why = Why.PARKED


#: Settlements without copies.
Direct = Delete | Hide | Lapse

Settlement = Direct | Forward
