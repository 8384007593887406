"""What Celery itself uses an exchange for, by its name: nobody else publishes there."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

#: kombu's names for remote control (kombu/pidbox.py: `Mailbox.exchange_fmt`), and Celery's for its events.
_CONTROL_SUFFIX: Final = ".pidbox"
_REPLY_PREFIX: Final = "reply."
_EVENT_EXCHANGE: Final = "celeryev"


class Use(Enum):
    """What an exchange is for."""

    COMMANDS = "commands to workers"
    REPLIES = "replies to commands"
    EVENTS = "events"


def use_of(exchange: str, event_exchanges: Iterable[str] = ()) -> Use | None:
    """What Celery uses the exchange for, if it is its own. Apps may name theirs of events themselves."""
    if exchange.endswith(_CONTROL_SUFFIX):
        return Use.REPLIES if exchange.startswith(_REPLY_PREFIX) else Use.COMMANDS
    return Use.EVENTS if exchange == _EVENT_EXCHANGE or exchange in event_exchanges else None


def replies_of(exchange: str) -> str:
    """The exchange for the replies to commands (kombu/pidbox.py: `Mailbox.reply_exchange_fmt`)."""
    return f"{_REPLY_PREFIX}{exchange}"
