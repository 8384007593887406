"""S3 in memory, for tests without a server."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from celery_sqs_visibility.aws.object_store import ObjectStore, no_op
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.errors import ObjectDoesNotExistError, SQSError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class FakeObjectStore(ObjectStore):
    """A bucket in this process's memory. Any thread.

    Attributes:
        objects: keys and their content.
        calls: the API actions called so far.
    """

    def __init__(self, bucket: str = "payloads") -> None:
        self._bucket = bucket
        self._failures: dict[str, deque[SQSError]] = defaultdict(deque)
        self.objects: dict[str, bytes] = {}
        self.calls: list[str] = []

    @property
    def bucket(self) -> str:
        return self._bucket

    def fail_next(self, action: str, *errors: SQSError) -> None:
        """Let the next calls of an API action raise these errors, without any other effect."""
        self._failures[action] += errors

    def put(self, key: str, content: bytes) -> None:
        self._call("PutObject")
        self.objects[key] = content

    def get(self, key: str, max_bytes: int, progress: Callable[[], None] = no_op) -> bytes:
        self._call("GetObject")
        content = self.objects.get(key)
        if content is None:
            sentence = "GetObject was answered NoSuchKey: The specified key does not exist."
            raise ObjectDoesNotExistError(sentence, code="NoSuchKey", action="GetObject")
        if len(content) > max_bytes:
            raise TooLargeError(f"s3://{self._bucket}/{key} has {len(content):,} bytes")
        progress()
        return content

    def delete(self, keys: Sequence[str]) -> BatchResult:
        self._call("DeleteObjects")
        for key in keys:
            self.objects.pop(key, None)
        return BatchResult({})

    def _call(self, action: str) -> None:
        self.calls.append(action)
        if self._failures[action]:
            raise self._failures[action].popleft()
