"""The port to S3, for payloads of messages in one bucket, and its implementation over boto3.

`fake.FakeObjectStore` implements it in memory. Both pass tests/conformance.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from celery_sqs_visibility.aws.breaker import Breaker
from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.error_codes import is_unanswered, reword, translate, translate_entry
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.process_lock import ProcessClients
from celery_sqs_visibility.errors import CredentialsRefusedError, TooLargeError, UnavailableError
from celery_sqs_visibility.events import SQSRequest, emit
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from types_boto3_s3 import S3Client

    from celery_sqs_visibility.aws.breaker import StartThread
    from celery_sqs_visibility.aws.client_settings import ClientSettings
    from celery_sqs_visibility.policy.clock import Clock

T = TypeVar("T")

#: Limit of API_DeleteObjects.
MAX_DELETED_OBJECTS: Final = 1000

#: Objects are read in parts of this size, each of which must arrive within this time.
PART_BYTES: Final = 256 * 1024
MAX_PART_SECONDS: Final = 15.0


def no_op() -> None:
    """Ignore progress."""


class ObjectStore(Protocol):
    """Objects of one bucket. Any thread. Methods raise an `SQSError`, or the errors that they list."""

    bucket: str

    def put(self, key: str, content: bytes) -> None:
        """PutObject."""

    def get(self, key: str, max_bytes: int, progress: Callable[[], None] = no_op) -> bytes:
        """GetObject. Calls `progress` after each part, which may raise an `SQSError` to stop.

        Raises:
            TooLargeError: the object has more than `max_bytes` bytes.
            ObjectDoesNotExistError: there is no such object. Without s3:ListBucket, S3 denies access instead.
        """

    def delete(self, keys: Sequence[str]) -> BatchResult:
        """DeleteObjects: 1 to 1000 keys. Missing objects are no error."""


class S3ObjectStore(ObjectStore):
    """A bucket over boto3. Ignores the endpoint in the settings, which is SQS's.

    Any thread. Each process makes its own client when it first needs one.
    """

    def __init__(self, settings: ClientSettings, bucket: str) -> None:
        self.bucket = bucket
        self._clients = ProcessClients(lambda: new_client(settings, ClientPurpose.PAYLOAD, "s3"))

    def put(self, key: str, content: bytes) -> None:
        self._call("PutObject", lambda s3: s3.put_object(Bucket=self.bucket, Key=key, Body=content))

    def get(self, key: str, max_bytes: int, progress: Callable[[], None] = no_op) -> bytes:
        def get(s3: S3Client) -> bytes:
            answer = s3.get_object(Bucket=self.bucket, Key=key)
            if answer["ContentLength"] > max_bytes:
                answer["Body"].close()
                raise TooLargeError(f"s3://{self.bucket}/{key} has {answer['ContentLength']:,} bytes")
            return _read(answer["Body"], progress)

        return self._call("GetObject", get)

    def delete(self, keys: Sequence[str]) -> BatchResult:
        objects: list[Any] = [{"Key": key} for key in keys]

        def delete(s3: S3Client) -> BatchResult:
            answer = s3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})
            errors: dict[str, Any] = {error.get("Key", ""): error for error in answer.get("Errors", [])}
            failed = {i: errors[key] for i, key in enumerate(keys) if key in errors}
            return BatchResult({i: translate_entry(e, "DeleteObjects", "s3") for i, e in failed.items()})

        return self._call("DeleteObjects", delete)

    def _call(self, action: str, request: Callable[[S3Client], T]) -> T:
        started, outcome = SYSTEM_CLOCK.monotonic(), "ok"
        try:
            return request(self._clients.get())
        except TooLargeError:
            raise
        except Exception as exc:  # noqa: BLE001 - the port promises an SQSError
            error = translate(exc, action, "s3")
            outcome = error.code
            if isinstance(error, CredentialsRefusedError):
                self._clients.discard()  # only new clients read rotated credentials
            remedy = "; create the bucket, or correct payload_store" if outcome == "NoSuchBucket" else ""
            raise reword(error, f"S3 bucket {self.bucket!r}: {error}{remedy}") from (error.__cause__ or exc)
        finally:
            if SQSRequest.is_wanted():
                emit(SQSRequest(action, SYSTEM_CLOCK.monotonic() - started, outcome))


def _read(body: Any, progress: Callable[[], None]) -> bytes:
    """Read a whole object. Raises an `UnavailableError` if a part arrives too slowly."""
    since = SYSTEM_CLOCK.monotonic()
    parts = []
    try:
        for part in body.iter_chunks(PART_BYTES):
            parts.append(part)
            now = SYSTEM_CLOCK.monotonic()
            if now - since > MAX_PART_SECONDS:
                raise UnavailableError(
                    f"GetObject brought less than {PART_BYTES // 1024} KiB in {MAX_PART_SECONDS:g} s",
                    code="TooSlow",
                    action="GetObject",
                )
            since = now
            progress()
    finally:
        body.close()
    return b"".join(parts)


#: The probe asks for this object, which does not exist. Any answer will do, even a missing permission.
PROBED_KEY: Final = "celery_sqs_visibility-probe"


class GuardedObjectStore(ObjectStore):
    """Raises an `UnavailableError` at once while S3 does not answer."""

    def __init__(self, objects: ObjectStore, start: StartThread, clock: Clock = SYSTEM_CLOCK) -> None:
        self.bucket = objects.bucket
        self._objects = objects
        self._breaker = Breaker(
            f"S3 bucket {self.bucket!r}", partial(objects.get, PROBED_KEY, 1), is_unanswered, start, clock
        )

    def put(self, key: str, content: bytes) -> None:
        self._call("PutObject", partial(self._objects.put, key, content))

    def get(self, key: str, max_bytes: int, progress: Callable[[], None] = no_op) -> bytes:
        return self._call("GetObject", partial(self._objects.get, key, max_bytes, progress))

    def delete(self, keys: Sequence[str]) -> BatchResult:
        return self._call("DeleteObjects", partial(self._objects.delete, keys))

    def _call(self, action: str, request: Callable[[], T]) -> T:
        return self._breaker.call(request, partial(UnavailableError, code="CircuitOpen", action=action))
