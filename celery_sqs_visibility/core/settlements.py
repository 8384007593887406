"""Ways to settle a delivery."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage


@dataclass(frozen=True, slots=True)
class Delete:
    """Done. Its payload is kept where another message has its place, or had, and needs that."""

    keeps_payload: bool = False


class Why(enum.Enum):
    """Why a message is hidden, as events and measurements tell."""

    RETRIED = "its run failed, and is tried again"
    KEPT = "it is given up, and is not run when it comes back"
    PARKED = "it is not due yet"
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


@dataclass(frozen=True, slots=True)
class Renew:
    """Not due yet, and it cannot wait any longer: send `copy`, which SQS counts and keeps anew, then delete.

    Where the copy cannot be sent the message is parked for `park` seconds, or, if it may not come back
    either (`None`), `payload` goes to Celery, which holds it.
    """

    copy: OutgoingMessage
    payload: dict[str, Any]
    park: int | None


@dataclass(frozen=True, slots=True)
class Split:
    """Several runs: send `copies`, then delete. Where its queue refuses all: a dead letter of `body`.

    Each copy is made when it is asked for. `remainder` makes the one message that stands for the copies at
    the given indices, in order; `None` where there can be none.
    """

    copies: Sequence[OutgoingMessage]
    body: str
    remainder: Callable[[Sequence[int]], OutgoingMessage | None] = lambda _indices: None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Given up: to the dead-letter queue as `body` with `attributes`, then delete.

    Without a dead-letter queue, or where it does not take the copy, `otherwise` is done instead.
    """

    reason: str
    body: str
    otherwise: Settlement
    attributes: Mapping[str, str] = field(default_factory=dict)


Settlement = Delete | Hide | Lapse | Renew | Split | DeadLetter
