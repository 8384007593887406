"""A store that nobody waits for twice: behind a circuit breaker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from celery_sqs_visibility.aws.breaker import Breaker, StartThread
from celery_sqs_visibility.errors import StoreError, StoreUnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.stores.port import Acquisition, ExclusiveStore, Renewal

T = TypeVar("T")

#: The probe releases this key, which nobody has: a request as any other, of the same permission.
PROBED_KEY: Final = "celery_sqs_visibility:probe"


class GuardedStore(ExclusiveStore):
    """One for each process. While the store does not answer, each call raises a `StoreError` at once."""

    def __init__(self, store: ExclusiveStore, start: StartThread, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._breaker = Breaker(
            "the store of exclusive keys",
            partial(store.release, PROBED_KEY, "nobody"),
            lambda error: isinstance(error, StoreUnavailableError),
            start,
            clock,
        )

    @property
    def error(self) -> str:
        """See `port.ExclusiveStore`."""
        return self._breaker.error

    def unanswered(self, error: str, since: float) -> None:
        """See `port.ExclusiveStore`."""
        self._breaker.unanswered(error, since)

    def answered(self, at: float) -> None:
        """See `port.ExclusiveStore`."""
        self._breaker.answered(at)

    def follow(self, tell: Callable[[float], object]) -> None:
        """See `aws.breaker.Breaker`."""
        self._breaker.follow(tell)

    def acquire(self, key: str, owner: str, seconds: float, retries: int = 0) -> Acquisition:
        """See `port.ExclusiveStore`."""
        return self._call(partial(self._store.acquire, key, owner, seconds, retries))

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """See `port.ExclusiveStore`."""
        return self._call(partial(self._store.renew, renewals))

    def finish(self, key: str, owner: str, ttl: float) -> bool:
        """See `port.ExclusiveStore`."""
        return self._call(partial(self._store.finish, key, owner, ttl))

    def release(self, key: str, owner: str) -> bool:
        """See `port.ExclusiveStore`."""
        return self._call(partial(self._store.release, key, owner))

    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        """See `port.ExclusiveStore`."""
        return self._call(partial(self._store.save, key, owner, checkpoint))

    def _call(self, request: Callable[[], T]) -> T:
        return self._breaker.call(request, StoreError)
