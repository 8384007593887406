"""A circuit breaker around a store: after one unanswered request the others fail at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from celery_sqs_visibility.aws.breaker import Breaker, StartThread
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.errors import StoreError, StoreUnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.exclusive import StoreAddress
from celery_sqs_visibility.stores.port import RECORD_SECONDS, Acquisition, ExclusiveStore, Renewal

T = TypeVar("T")


def open_store(address: StoreAddress, settings: ClientSettings) -> ExclusiveStore:
    """Return this process's store. Makes no request.

    Args:
        address: the option `coordination_store`.
        settings: SQS's, for region, credentials and role.

    Raises:
        OptionError: the package redis is missing, or refuses the address.
    """
    if address.is_redis:
        from celery_sqs_visibility.stores.redis import RedisStore  # noqa: PLC0415 - one of the two

        return RedisStore(address.url)
    from celery_sqs_visibility.stores.dynamodb import DynamoDBStore  # noqa: PLC0415 - one of the two

    # The endpoint in the settings is SQS's. botocore finds DynamoDB's (AWS_ENDPOINT_URL_DYNAMODB).
    return DynamoDBStore(
        address.table, replace(settings, endpoint_url=None, region=address.region or settings.region)
    )


class GuardedStore(ExclusiveStore):
    """A store whose calls raise a `StoreError` at once while it does not answer. One for each process.

    Args:
        store: the store to guard.
        start: starts the thread that probes the store.
        clock: the monotonic clock.
        prefix: prepended to each key, so that apps with different `queue_name_prefix`es may share a store.
    """

    def __init__(
        self, store: ExclusiveStore, start: StartThread, clock: Clock = SYSTEM_CLOCK, prefix: str = ""
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._breaker = Breaker(
            "the store of exclusive keys",
            store.probe,
            lambda error: isinstance(error, StoreUnavailableError),
            start,
            clock,
        )

    @property
    def error(self) -> str:
        return self._breaker.error

    def unanswered(self, error: str, since: float) -> None:
        self._breaker.unanswered(error, since)

    def answered(self, at: float) -> None:
        self._breaker.answered(at)

    def follow(self, tell: Callable[[float], object]) -> None:
        self._breaker.follow(tell)

    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        return self._call(partial(self._store.acquire, self._prefix + key, owner, seconds, retries, kept))

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        prefixed = [each._replace(key=self._prefix + each.key) for each in renewals]
        return self._call(partial(self._store.renew, prefixed))

    def finish(self, key: str, owner: str, ttl: float) -> bool:
        return self._call(partial(self._store.finish, self._prefix + key, owner, ttl))

    def release(self, key: str, owner: str) -> bool:
        return self._call(partial(self._store.release, self._prefix + key, owner))

    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        return self._call(partial(self._store.save, self._prefix + key, owner, checkpoint))

    def _call(self, request: Callable[[], T]) -> T:
        return self._breaker.call(request, StoreError)
