"""The port to a store of exclusive keys.

A key is unprocessed, being processed (its owner has a lease), or processed (for a time to live). A store
keeps one record for each key. All calls except `acquire` and `claim` only work for the current owner: a run
whose lease has lapsed changes nothing once another run has acquired its key.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS

#: The probe's key, and its owner. No run uses them.
PROBED_KEY: Final = "celery_sqs_visibility:probe"
PROBE_SECONDS: Final = 1.0

#: How long a record is kept after its lease: SQS keeps no message for longer.
RECORD_SECONDS: Final = RETENTION_SECONDS


@dataclass(frozen=True, slots=True)
class Acquired:
    """The caller has the key.

    Attributes:
        checkpoint: the value that an earlier run saved last; `None` if none did.
        retries: an upper bound for the number of earlier attempts of the message.
        runs: how many of these had the key in a row, immediately before this one.
    """

    checkpoint: Any = None
    retries: int = field(default=0, compare=False)
    runs: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Processing:
    """Another owner has the key.

    Attributes:
        seconds: the time until its lease lapses, if it is not renewed.
        owner: its name.
    """

    seconds: float
    owner: str


@dataclass(frozen=True, slots=True)
class Processed:
    """The key's task has succeeded, and the key's time to live is not over."""


Acquisition = Acquired | Processing | Processed


class Renewal(NamedTuple):
    """A request to renew a lease, which lasts `seconds` from then on."""

    key: str
    owner: str
    seconds: float


class ExclusiveStore(Protocol):
    """A store of exclusive keys, for any thread of one process.

    Each call except `renew` makes one request, which takes a few seconds at most. Calls with the same owner
    are idempotent, so they may be repeated after a lost answer.

    Raises:
        StoreUnavailableError: from any call, if the store does not answer in time.
        StoreError: from any call, if the store refuses.
    """

    @property
    def error(self) -> str:
        """Why calls are refused now; empty while they are passed on. Makes no request."""
        return ""

    def unanswered(self, error: str, since: float) -> None:
        """Note that another process's request, made at `since`, got no answer. Makes no request."""
        del error, since  # a store remembers nothing; `guarded.GuardedStore` does

    def answered(self, at: float) -> None:
        """Note that another process's probe was answered at that monotonic instant. Makes no request."""
        del at

    @abstractmethod
    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        """Acquire the key for some seconds, if it is free.

        Args:
            key: the key.
            owner: the unique name of a run.
            seconds: how long the lease lasts.
            retries: earlier attempts of the run's message. The store counts a message's runs in a row
                (`policy.exclusive.message_of`), and adds them to the first one's retries.
            kept: how many seconds the record outlasts the lease.
        """

    @abstractmethod
    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Renew leases. Returns for each of them whether its owner still has the key.

        Restores a record that the store has lost, unless another owner has acquired the key since.
        """

    @abstractmethod
    def finish(self, key: str, owner: str, ttl: float) -> bool:
        """Mark the key as processed for `ttl` seconds; drop its checkpoint. Returns False if not owned."""

    @abstractmethod
    def release(self, key: str, owner: str) -> bool:
        """Free the key at once, and keep its checkpoint. Returns False if not owned."""

    @abstractmethod
    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        """Save a checkpoint, which JSON must be able to express. Returns False if the key is not owned."""

    def claim(self, key: str, ttl: float, owner: str = "") -> bool:
        """Claim the key for `ttl` seconds. Returns False if it is claimed. Only `owner` can release it."""
        return isinstance(self.acquire(key, owner or uuid.uuid4().hex, ttl, kept=0), Acquired)

    def probe(self) -> None:
        """Acquire and release a key, because a store may answer and still refuse writes. Two requests."""
        self.acquire(PROBED_KEY, PROBED_KEY, PROBE_SECONDS, 0, 0)
        self.release(PROBED_KEY, PROBED_KEY)
