"""A bucket that nobody waits for twice: behind a circuit breaker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from celery_sqs_visibility.aws.breaker import Breaker
from celery_sqs_visibility.aws.error_codes import is_unanswered
from celery_sqs_visibility.aws.object_store import ObjectStore, no_op
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_sqs_visibility.aws.breaker import StartThread
    from celery_sqs_visibility.aws.port import BatchResult
    from celery_sqs_visibility.policy.clock import Clock

T = TypeVar("T")

#: The probe asks for this object, which is not there. A producer may not, and S3 says so: that is an answer.
PROBED_KEY: Final = "celery_sqs_visibility-probe"


class GuardedObjectStore(ObjectStore):
    """While S3 does not answer, each call raises an `UnavailableError` at once."""

    def __init__(self, objects: ObjectStore, start: StartThread, clock: Clock = SYSTEM_CLOCK) -> None:
        self._objects = objects
        self._breaker = Breaker(
            f"S3 bucket {objects.bucket!r}", partial(objects.get, PROBED_KEY, 1), is_unanswered, start, clock
        )

    @property
    def bucket(self) -> str:
        """See `ObjectStore`."""
        return self._objects.bucket

    def put(self, key: str, content: bytes) -> None:
        """See `ObjectStore`."""
        self._call("PutObject", partial(self._objects.put, key, content))

    def get(self, key: str, most: int, progress: Callable[[], None] = no_op) -> bytes:
        """See `ObjectStore`."""
        return self._call("GetObject", partial(self._objects.get, key, most, progress))

    def delete(self, keys: Sequence[str]) -> BatchResult:
        """See `ObjectStore`."""
        return self._call("DeleteObjects", partial(self._objects.delete, keys))

    def _call(self, action: str, request: Callable[[], T]) -> T:
        return self._breaker.call(request, partial(UnavailableError, code="CircuitOpen", action=action))
