"""Exclusive tasks: the address of their store, names of keys and owners, waits for a key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from celery_sqs_visibility.errors import ExclusiveKeyError, OptionError
from celery_sqs_visibility.policy.option_parsers import Seconds
from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS, VISIBILITY_HORIZON_SECONDS

#: The longest key in UTF-8, including its task's name: half of what DynamoDB allows for a partition key.
KEY_BYTES: Final = 1024

#: The largest checkpoint as JSON: it should say how far a run has come, not hold its data.
CHECKPOINT_BYTES: Final = 64 * 1024

#: How long a key counts as processed by default: SQS keeps no message longer.
TTL_SECONDS: Final = float(RETENTION_SECONDS)
MAX_TTL_SECONDS: Final = 365 * 24 * 60 * 60
parse_exclusive_ttl: Final = Seconds(1, MAX_TTL_SECONDS)

#: How long a message waits if the store did not answer. The longer time is for a message without a copy,
#: before the last receive that its queue allows.
STORE_RETRY_SECONDS: Final = 30
MAX_STORE_RETRY_SECONDS: Final = 600

REDIS_SCHEMES: Final = ("redis", "rediss")

_EXPECTED: Final = "expected {name} to be dynamodb://TABLE, redis://HOST or rediss://HOST, got {got}"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where keys are stored.

    Attributes:
        url: as the user wrote it. Not in the repr: a Redis URL may hold a password.
        table: the DynamoDB table; empty for Redis.
        region: of the table, if it differs from that of SQS.
    """

    url: str = field(repr=False)
    table: str = ""
    region: str | None = None

    @property
    def is_redis(self) -> bool:
        """Whether it is Redis, and not DynamoDB."""
        return not self.table


def store_retry_seconds(receives_left: int | None) -> int:
    """Seconds to hide a message without a copy while the store does not answer.

    The fewer receives are left, the longer it waits: after the last one SQS would move it to the dead-letter
    queue without a run. `receives_left` is `None` without a redrive policy.
    """
    if receives_left is None:
        return STORE_RETRY_SECONDS
    return max(STORE_RETRY_SECONDS, MAX_STORE_RETRY_SECONDS >> max(0, receives_left - 1))


def store_address(name: str, value: Any) -> StoreAddress:
    """Parse the option `coordination_store`. No error shows a password."""
    if not isinstance(value, str) or "://" not in value:
        raise OptionError(_EXPECTED.format(name=name, got="no URL"))
    try:
        parts = urlsplit(value)
    except ValueError:
        raise OptionError(_EXPECTED.format(name=name, got="no URL")) from None
    if parts.scheme in REDIS_SCHEMES:
        return StoreAddress(value)
    if parts.scheme != "dynamodb":
        raise OptionError(_EXPECTED.format(name=name, got=f"the scheme {parts.scheme!r}"))
    query = parse_qs(parts.query)
    regions = query.pop("region", [None])
    if query or parts.path.strip("/") or not parts.netloc or "@" in parts.netloc:
        raise OptionError(
            f"expected {name} to be dynamodb://TABLE or dynamodb://TABLE?region=REGION; credentials are "
            "those of SQS, and an endpoint is AWS_ENDPOINT_URL_DYNAMODB's to name"
        )
    return StoreAddress(value, parts.netloc, regions[0])


def key_of(task: str, given: Any) -> str:
    """Name the key in the store that `exclusive` returned as a text or an integer.

    Raises:
        ExclusiveKeyError: it is anything else, or is empty or too long.
    """
    if isinstance(given, bool) or not isinstance(given, (str, int)) or given == "":
        raise ExclusiveKeyError(
            f"expected `exclusive` of task {task!r} to return a text or a whole number, got {given!r}"
        )
    key = f"{task}:{given}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ExclusiveKeyError(f"`exclusive` of task {task!r} returned invalid Unicode: {error}") from None
    if size > KEY_BYTES:
        raise ExclusiveKeyError(
            f"expected `exclusive` of task {task!r} to return a key of at most {KEY_BYTES} bytes, the task's "
            f"name included, got {size}: return a hash of it"
        )
    return key


def seconds_to_wait(lease_left: float) -> int:
    """Whole seconds to hide a message until another run's lease lapses."""
    return max(1, min(math.ceil(lease_left), VISIBILITY_HORIZON_SECONDS))


def message_of(owner: str) -> str:
    """The id of the message whose run `owner` is."""
    return owner.partition("/")[0]


def owner_of(message_id: str, run: str) -> str:
    """Name the owner for a run of a message. `run` must be unique."""
    return f"{message_id}/{run}"
