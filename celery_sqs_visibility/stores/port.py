"""Port to a store of exclusive keys.

A key is unprocessed, being processed (its owner has a lease), or processed (for a time to live). A store
keeps it as one record. All calls but `acquire` and `claim` work only for the present owner: a run whose lease
has lapsed, and whose key another has acquired since, changes nothing any more.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS

#: The probe's key and owner, which no run has.
PROBED_KEY: Final = "celery_sqs_visibility:probe"
PROBE_SECONDS: Final = 1.0

#: How long a record is kept after the last sign of its key: SQS keeps no message for longer.
RECORD_SECONDS: Final = RETENTION_SECONDS


@dataclass(frozen=True, slots=True)
class Acquired:
    """The key is the caller's.

    Attributes:
                checkpoint: the value that an earlier run saved last; `None` if none did.
        retries: the greatest possible number of earlier attempts of its message.
        runs: how many of these had the key immediately before this one, in a row.
    """

    checkpoint: Any = None
    retries: int = field(default=0, compare=False)
    runs: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Processing:
    """Another owner has the key.

    Attributes:
        seconds: until its lease lapses, unless it is renewed.
                owner: the name of that owner.
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
        """Why the store is not asked now; empty if it answers, as far as known. No request."""
        return ""

    def unanswered(self, error: str, since: float) -> None:
        """Note that another process's request of that monotonic instant was not answered. No request."""
        del error, since  # a store remembers nothing; `guarded.GuardedStore` does

    def answered(self, at: float) -> None:
        """Note that another process's probe was answered at that monotonic instant. No request."""
        del at

    @abstractmethod
    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        """Take the key for that long, if it is free. An owner is one run, and has a unique name.

        The record is kept for `kept` seconds longer than the lease lasts.

        The store counts the runs of one message in a row (`policy.exclusive.message_of`), and adds them to
        the `retries` of the first of them.
        """

    @abstractmethod
    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Prolong leases; for each, whether the key is still its owner's.

        A record that the store has lost is made again, unless another has acquired the key since.
        """

    @abstractmethod
    def finish(self, key: str, owner: str, ttl: float) -> bool:
        """Mark the key as processed for `ttl` seconds, and drop its checkpoint."""

    @abstractmethod
    def release(self, key: str, owner: str) -> bool:
        """Free the key at once; its checkpoint stays."""

    @abstractmethod
    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        """Keep a value that JSON can express for the next owner."""

    def claim(self, key: str, ttl: float, owner: str = "") -> bool:
        """Whether nobody has claimed the key in the last `ttl` seconds; only `owner` releases the claim."""
        return isinstance(self.acquire(key, owner or uuid.uuid4().hex, ttl, kept=0), Acquired)

    def probe(self) -> None:
        """Acquire and release a key: a store that answers, but takes no writes, fails. Two requests."""
        self.acquire(PROBED_KEY, PROBED_KEY, PROBE_SECONDS, 0, 0)
        self.release(PROBED_KEY, PROBED_KEY)
