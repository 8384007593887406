"""Messages fetched by `basic_get`. They are not extended: SQS hides each for one visibility timeout."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass

from celery_sqs_visibility.aws.port import BatchResult, ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.settlements import Delete, Hide, Lapse
from celery_sqs_visibility.delivery.awaited_payloads import fetch
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.delivery.settle.rejection import rejected
from celery_sqs_visibility.errors import SQSError, UnavailableError, UnreadableError
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.options import OptionsOfQueue
from celery_sqs_visibility.policy.payload_pointers import NO_PAYLOADS, PayloadPointer, pointer_in
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedMessage:
    """A fetched message, hidden until the monotonic instant `deadline`. Its payload may be in S3."""

    queue: Queue
    deadline: float
    pointer: PayloadPointer | None


class FetchedMessages:
    """Receipt handles of one channel, until they are settled or expire. Any thread.

    `acknowledge` and `reject` make a request and raise the `SQSError` of a failed one. They return `False`
    for a message that was not fetched here. `payloads` is the bucket of large messages.
    """

    def __init__(
        self, options_of: OptionsOfQueue, clock: Clock, payloads: PayloadStore | None = None
    ) -> None:
        self._options_of = options_of
        self._clock = clock
        self._payloads = payloads
        self._lock = threading.Lock()  # guards _fetched
        self._fetched: dict[str, FetchedMessage] = {}  # by handle

    def __len__(self) -> int:
        return len(self._fetched)

    def fetch(self, queue: Queue, wanted: ReceiveOptions) -> ReceivedMessage | None:
        """Receive a message, including a payload in S3; `None` if there is no message. Blocks.

        Raises:
            ValueError: the payload does not exist.
            SQSError: SQS does not answer, or S3 does not while the message is hidden.
        """
        called = self._clock.monotonic()
        for received in queue.sqs.receive(queue.url, 1, 0, wanted):
            try:
                pointer, message = self._with_payload(received, queue, called)
            except UnreadableError as error:
                raise ValueError(f"a message of queue {queue.name!r} cannot be read: {error}") from error
            with self._lock:
                self._forget_lapsed()
                fetched = FetchedMessage(queue, self._deadline(queue, called), pointer)
                self._fetched[message["ReceiptHandle"]] = fetched
            return message
        return None

    def _with_payload(
        self, message: ReceivedMessage, queue: Queue, called: float
    ) -> tuple[PayloadPointer | None, ReceivedMessage]:
        """Fetch the payload if it is in S3. Returns the pointer, if any, and the complete message."""
        readable = self._payloads.readable if self._payloads else NO_PAYLOADS
        pointer = pointer_in(message["Body"], message.get("MessageAttributes", {}), readable)
        if pointer is None or self._payloads is None:
            return None, message
        deadline = self._deadline(queue, called)

        def in_time() -> None:
            if deadline <= self._clock.monotonic():
                raise UnavailableError(
                    f"its payload {pointer} had not come when the message was visible again", code="TooSlow"
                )

        return pointer, {**message, "Body": fetch(self._payloads.objects, pointer, in_time)}

    def acknowledge(self, handle: str) -> bool:
        """Delete the message."""
        if (message := self._take(handle)) is not None:
            self._delete(handle, message)
        return message is not None

    def reject(self, handle: str, redrive: RedriveBook, *, requeue: bool) -> bool:
        """Make the message visible again if `requeue`, otherwise give it up, as `Rejection.reject` does.

        A message that is given up is left to the redrive policy. Without one it is deleted or, with
        `when_exhausted="keep"`, hidden for an hour, after which another `basic_get` may fetch it.
        """
        if (message := self._take(handle)) is None:
            return False
        queue = message.queue
        if requeue:
            _raise_failure(queue.sqs.change_visibility(queue.url, [(handle, 0)]))
            return True
        redrive.get(queue, self._clock.monotonic())
        match rejected(redrive, queue, self._options_of(queue.name).when_exhausted):
            case Delete():
                self._delete(handle, message)
            case Hide(seconds):
                _raise_failure(queue.sqs.change_visibility(queue.url, [(handle, seconds)]))
            case Lapse():
                pass
        return True

    def release_all(self) -> None:
        """Make unsettled messages visible again. Errors are logged."""
        with self._lock:
            self._forget_lapsed()
            left, self._fetched = self._fetched, {}
        by_queue: defaultdict[Queue, list[tuple[str, int]]] = defaultdict(list)
        for handle, message in left.items():
            by_queue[message.queue].append((handle, 0))
        for queue, changes in by_queue.items():
            try:
                for start in range(0, len(changes), BATCH_ENTRIES):
                    queue.sqs.change_visibility(queue.url, changes[start : start + BATCH_ENTRIES])
            except SQSError as error:
                logger.warning(
                    "messages fetched from queue %r stay hidden until their visibility timeout is over: %s",
                    queue.name,
                    error,
                )

    def _delete(self, handle: str, message: FetchedMessage) -> None:
        _raise_failure(message.queue.sqs.delete(message.queue.url, [handle]))
        pointer, payloads = message.pointer, self._payloads
        if pointer is None or payloads is None or not payloads.owns(pointer.key):
            return
        if message.deadline <= self._clock.monotonic():
            return  # the message may still exist
        try:
            _raise_failure(payloads.objects.delete([pointer.key]))
        except SQSError as error:
            logger.warning("the payload %s of a deleted message stays in S3: %s", pointer, error)

    def _deadline(self, queue: Queue, called: float) -> float:
        return called + self._options_of(queue.name).visibility_timeout

    def _take(self, handle: str) -> FetchedMessage | None:
        if not self._fetched:  # this is called for every message of a consumer
            return None
        with self._lock:
            return self._fetched.pop(handle, None)

    def _forget_lapsed(self) -> None:
        now = self._clock.monotonic()
        self._fetched = {handle: kept for handle, kept in self._fetched.items() if kept.deadline > now}


def _raise_failure(result: BatchResult) -> None:
    for error in result.failed.values():
        raise error
