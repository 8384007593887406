"""Names of the control queues and of the exchanges of remote control and events.

The name of a control queue is its binding, because all processes can list queues. A name is
`<prefix><exchange>-<digest of exchange>-<digest of node>-<unique>`. The digests distinguish names that differ
only in characters that SQS refuses, and let a caller find the queues of some nodes without a request. The
unique part is new at each start, because SQS reserves a deleted queue's name for a minute.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

from celery_sqs_visibility.policy.queue_names import MAX_NAME_CHARACTERS

EXCHANGE_DIGEST_CHARACTERS: Final = 6
NODE_DIGEST_CHARACTERS: Final = 8
UNIQUE_CHARACTERS: Final = 12

#: Length of the part after the exchange in a name, hyphens included.
_TAIL_CHARACTERS: Final = EXCHANGE_DIGEST_CHARACTERS + NODE_DIGEST_CHARACTERS + UNIQUE_CHARACTERS + 3

#: Characters of the exchange's name that always fit.
_FEWEST_READABLE: Final = 8

MAX_PREFIX_CHARACTERS: Final = MAX_NAME_CHARACTERS - _TAIL_CHARACTERS - _FEWEST_READABLE

_ILLEGAL: Final = re.compile("[^A-Za-z0-9_-]")
_ADDRESS: Final = re.compile(rf"[0-9a-f]{{{NODE_DIGEST_CHARACTERS}}}-[0-9a-f]{{{UNIQUE_CHARACTERS}}}")


def exchange_prefix(prefix: str, exchange: str) -> str:
    """The prefix of the names of an exchange's queues, and of no other queues."""
    room = MAX_NAME_CHARACTERS - _TAIL_CHARACTERS - len(prefix)
    return f"{prefix}{_ILLEGAL.sub('-', exchange)[:room]}-{_digest(exchange, EXCHANGE_DIGEST_CHARACTERS)}-"


def address(node: str, unique: str) -> str:
    """The part of the name of the node's queue after the exchange's prefix."""
    return f"{_digest(node, NODE_DIGEST_CHARACTERS)}-{unique}"


def address_in(url: str) -> str:
    """The address in the URL of a control queue, by which others find the queue."""
    return url[-(NODE_DIGEST_CHARACTERS + 1 + UNIQUE_CHARACTERS) :]


def is_address(text: str) -> bool:
    """Returns whether the text has the form of an `address`."""
    return _ADDRESS.fullmatch(text) is not None


def of_nodes(addresses: Iterable[str], nodes: Iterable[str]) -> list[str]:
    """The addresses of these nodes, and of any with the same digest."""
    digests = _node_digests(nodes)
    return [address for address in addresses if address[:NODE_DIGEST_CHARACTERS] in digests]


def has_all(addresses: Iterable[str], nodes: Iterable[str]) -> bool:
    """Returns whether each of the nodes has an address. A node may also have addresses of earlier starts."""
    return _node_digests(nodes) <= {address[:NODE_DIGEST_CHARACTERS] for address in addresses}


def _node_digests(nodes: Iterable[str]) -> set[str]:
    return {_digest(node, NODE_DIGEST_CHARACTERS) for node in nodes}


def _digest(name: str, characters: int) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:characters]


#: kombu's names for remote control (kombu/pidbox.py: `Mailbox.exchange_fmt`), and Celery's for its events.
_CONTROL_SUFFIX: Final = ".pidbox"
_REPLY_PREFIX: Final = "reply."
_EVENT_EXCHANGE: Final = "celeryev"


class Use(Enum):
    """Use of an exchange by Celery."""

    COMMANDS = "commands to workers"
    REPLIES = "replies to commands"
    EVENTS = "events"


def use_of(exchange: str, event_exchanges: Iterable[str] = ()) -> Use | None:
    """What Celery uses an exchange for; `None` if it isn't Celery's. `event_exchanges` are named by apps."""
    if exchange.endswith(_CONTROL_SUFFIX):
        return Use.REPLIES if exchange.startswith(_REPLY_PREFIX) else Use.COMMANDS
    return Use.EVENTS if exchange == _EVENT_EXCHANGE or exchange in event_exchanges else None


def replies_of(exchange: str) -> str:
    """The exchange for the replies to commands (kombu/pidbox.py: `Mailbox.reply_exchange_fmt`)."""
    return f"{_REPLY_PREFIX}{exchange}"
