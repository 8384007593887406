"""The port to a store of exclusive keys, in the words of the tasks that use it.

A key is unprocessed, being processed (its owner has a lease), or processed (for a time to live). A store
keeps it as one record. All but `acquire` and `claim` do something only for the owner that has not released
the key: a run whose lease has lapsed, and whose key is another's by now, changes nothing any more.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS

#: How long a record is kept after the last sign of its key: SQS keeps no message for longer.
RECORD_SECONDS: Final = RETENTION_SECONDS


@dataclass(frozen=True, slots=True)
class Acquired:
    """The key is the caller's.

    Attributes:
        checkpoint: the value that a run before this one saved last; `None` if none did.
        retries: how many attempts of its message came before, at the most.
        runs: how many of them had the key right before this one, one after the other.
    """

    checkpoint: Any = None
    retries: int = field(default=0, compare=False)
    runs: int = field(default=0, compare=False)


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
    """The store. Any thread of one process. Each call but `renew` is one request, of some seconds at most.

    All calls may be repeated with the same owner: an answer that was lost does no harm.

    Raises:
        StoreUnavailableError: all of them, when the store does not answer in time.
        StoreError: all of them, when it refuses.
    """

    @property
    def error(self) -> str:
        """Why nobody asks the store now; empty: it answers, as far as is known. No request."""
        return ""

    def unanswered(self, error: str, since: float) -> None:
        """Another process had no answer to its request of that monotonic instant. Makes no request."""
        del error, since  # a store remembers nothing; `guarded.GuardedStore` does

    def answered(self, at: float) -> None:
        """A probe of another process was answered at that monotonic instant. Makes no request."""
        del at

    @abstractmethod
    def acquire(self, key: str, owner: str, seconds: float, retries: int = 0) -> Acquisition:
        """Take the key for that long, if it is free. An owner is one run, and has a name of its own.

        The store counts the runs of one message in a row (`policy.exclusive.message_of`), and adds them to
        the `retries` of the first of them.
        """

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
