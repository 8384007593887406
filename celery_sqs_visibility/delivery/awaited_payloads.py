"""Payloads on their way from S3. No poll waits for them, and the heartbeat extends their messages."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from celery_sqs_visibility.aws.object_store import ObjectStore
from celery_sqs_visibility.aws.port import BatchResult, ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.core.settlements import Hide
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.receive.decoder import ReadContent
from celery_sqs_visibility.delivery.settle.rejection import KEPT_SECONDS
from celery_sqs_visibility.errors import ObjectDoesNotExistError, SQSError, TooLargeError, UnreadableError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.message_limits import PAYLOAD_BYTES
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer

logger = logging.getLogger(__name__)

#: Payloads fetched at the same time; each may have `PAYLOAD_BYTES`.
MAX_FETCHES: Final = 4

#: A failed fetch is repeated for this long, while its message is held. Then the message comes back.
TRY_SECONDS: Final = 60.0

#: A fetch without data for this long is waiting for S3; other messages may have its message's place.
SILENCE_SECONDS: Final = 1.0

NOT_FETCHED: Final = "a payload could not be fetched from S3, so its message comes back (%s)"


def fetch(objects: ObjectStore, pointer: PayloadPointer, progress: Callable[[], None]) -> str:
    """Return the body that the message would have without S3. Waits in the caller's thread.

    `progress` is called as data arrives.

    Raises:
        UnreadableError: the object does not exist, is not text, or is too large.
        SQSError: S3 did not answer, or refused.
    """
    try:
        return objects.get(pointer.key, PAYLOAD_BYTES, progress).decode()
    except ObjectDoesNotExistError:
        raise UnreadableError(
            f"its payload {pointer} is gone: deleted, or expired by a lifecycle rule"
        ) from None
    except TooLargeError as error:
        raise UnreadableError(f"its payload is larger than {PAYLOAD_BYTES:,} bytes: {error}") from None
    except UnicodeDecodeError as error:
        raise UnreadableError(f"its payload {pointer} is not text: {error}") from None


def settle_unfetched(delivery: Delivery, pointer: PayloadPointer, **why: str) -> None:
    """Let a message whose payload can't be fetched come back; late if SQS would move it. Any thread."""
    facts = Fields({**asdict(delivery.facts), "payload": str(pointer), **why})
    log_safely(logger.warning, NOT_FETCHED, facts, extra={"sqs": facts})
    delivery.settle(delivery.after_an_error() if delivery.may_return else Hide(KEPT_SECONDS))


@dataclass(slots=True, eq=False)
class Fetch:
    """The fetch of one payload, retried until the monotonic instant `until`."""

    delivery: Delivery
    pointer: PayloadPointer
    message: ReceivedMessage
    until: float
    failures: int = 0
    content: ReadContent | None = field(default=None, init=False)

    def __len__(self) -> int:
        return 1

    @property
    def wanted(self) -> bool:
        """Whether its message is still held."""
        return self.delivery.held


class AwaitedPayloads:
    """Fetches the payloads of a consumer's messages, which take no capacity while S3 does not answer.

    Args:
        objects: the bucket.
        decode: returns the content of a message whose body is its payload.
        capacity: of the consumer.
        fetched: called with the content of a held message, in a thread that fetches.

    Attributes:
        lane: the lane of these requests, to be started.
    """

    def __init__(
        self,
        objects: ObjectStore,
        decode: Callable[[Queue, ReceivedMessage], ReadContent],
        capacity: Capacity,
        fetched: Callable[[Delivery, ReadContent, ReceivedMessage], None],
        pump: Pump,
    ) -> None:
        self._objects = objects
        self._decode = decode
        self._capacity = capacity
        self._fetched = fetched
        self._now = pump.now
        self._outage = Outage(logger, "fetch payloads", objects.bucket, pump.clock, kind="bucket")
        self.lane: Lane[Fetch] = pump.lane("fetches payloads from S3", MAX_FETCHES, self)
        self._lock = self.lane.lock  # guards everything below
        self._waiting: list[tuple[float, int, Fetch]] = []  # heap: (not before, tie-break, fetch)
        self._ties = itertools.count()

    def submit(self, delivery: Delivery, pointer: PayloadPointer, message: ReceivedMessage) -> None:
        """Fetch the payload of a held message. Any thread; does not block."""
        now = self._now()
        self._enqueue(now, Fetch(delivery, pointer, message, now + TRY_SECONDS))

    def _enqueue(self, not_before: float, one: Fetch) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (not_before, next(self._ties), one))
            self.lane.wake()

    def due(self, _now: float) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def ready(self) -> int:
        return len(self._waiting)

    def take(self, now: float) -> Fetch | None:
        return heapq.heappop(self._waiting)[2] if self._waiting and self._waiting[0][0] <= now else None

    def send(self, batch: Fetch, _since: float) -> BatchResult:
        with self._lock:
            has_place = self._capacity.has_place(batch.delivery, self._now())
        if batch.wanted and has_place:
            try:
                body = fetch(self._objects, batch.pointer, self.lane.progress)
                batch.content = self._decode(batch.delivery.queue, {**batch.message, "Body": body})
            except UnreadableError as error:
                batch.content = error
        return BatchResult({})

    def conclude(self, batch: Fetch, since: float, failed: Mapping[int, SQSError]) -> None:
        if batch.content is not None:
            self._outage.success(since)
        if not batch.wanted:
            return
        if failed:
            self._try_again(batch, failed[0])
        elif batch.content is not None:
            with self._lock:
                self._capacity.resume(batch.delivery)
            self._fetched(batch.delivery, batch.content, batch.message)
        else:  # there was no place, so S3 was not asked
            now = self._now()
            batch.until = now + TRY_SECONDS
            self._enqueue(now + pause(batch.failures), batch)

    def replace_stuck(self, now: float) -> None:
        """Free the places of messages whose fetches make no progress; of all messages, if no fetch does.

        Replaces no thread. Called by the supervisor's thread.
        """
        with self._lock:  # no fetch ends meanwhile
            running = self.lane.in_progress()
            silent = [each.batch for each in running if now - each.seen >= SILENCE_SECONDS]
            if silent and len(silent) == len(running):
                silent += [one for _, _, one in self._waiting]
            for one in silent:
                self._set_aside(one.delivery)

    def _set_aside(self, delivery: Delivery) -> None:
        """Let others have the place of a delivery. Under the lock."""
        self._capacity.rest(delivery, Wait.PAYLOAD)
        self._capacity.serve(self._now(), delivery.queue.name)

    def _try_again(self, one: Fetch, error: SQSError) -> None:
        """Fetch a payload again later, or let its message come back."""
        self._outage.failure(error)
        one.failures += 1
        not_before = self._now() + pause(one.failures)
        if not_before < one.until:
            with self._lock:
                self._set_aside(one.delivery)
            self._enqueue(not_before, one)
            return
        settle_unfetched(one.delivery, one.pointer)
