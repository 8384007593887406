"""The port to a store of exclusive keys, in the words of the tasks that use it.

A key is unprocessed, being processed (its owner has a lease), or processed (for a time to live). A store
keeps it as one record. All but `acquire` and `claim` do something only for the owner that has not released
the key: a run whose lease has lapsed, and whose key is another's by now, changes nothing any more.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS

#: How long a record is kept after the last sign of its key: SQS keeps no message for longer.
RECORD_SECONDS: Final = RETENTION_SECONDS


@dataclass(frozen=True, slots=True)
class Acquired:
    """The key is the caller's.

    Attributes:
        checkpoint: the value that a run before this one saved last; `None` if none did.
    """

    checkpoint: Any = None


@dataclass(frozen=True, slots=True)
class Processing:
    """Another owner has the key.

    Attributes:
        seconds: until its lease lapses, unless it is renewed.
        owner: the one that has it.
    """

    seconds: float
    owner: str


@dataclass(frozen=True, slots=True)
class Processed:
    """The key's task has succeeded, and its time to live is not over."""


Acquisition = Acquired | Processing | Processed


class Renewal(NamedTuple):
    """A lease that is to last `seconds` from now."""

    key: str
    owner: str
    seconds: float


class ExclusiveStore(Protocol):
    """The store. Any thread of one process. Each call but `renew` is one request, of ten seconds at most.

    All calls may be repeated with the same owner: an answer that was lost does no harm.

    Raises:
        StoreError: all of them, when the store does not answer or refuses.
    """

    @abstractmethod
    def acquire(self, key: str, owner: str, seconds: float) -> Acquisition:
        """Take the key for that long, if it is free. An owner is one run, and has a name of its own."""

    @abstractmethod
    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Have leases last longer; for each, whether the key is still its owner's."""

    @abstractmethod
    def finish(self, key: str, owner: str, ttl: float) -> bool:
        """The key counts as processed for `ttl` seconds; its checkpoint is dropped."""

    @abstractmethod
    def release(self, key: str, owner: str) -> bool:
        """The key is free at once; its checkpoint stays."""

    @abstractmethod
    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        """Keep a value that JSON can express for the next owner."""

    def claim(self, key: str, ttl: float, owner: str = "") -> bool:
        """Whether nobody has claimed the key in the last `ttl` seconds; only `owner` releases the claim."""
        return isinstance(self.acquire(key, owner or uuid.uuid4().hex, ttl), Acquired)
