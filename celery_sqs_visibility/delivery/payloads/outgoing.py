"""Sends messages of any size: payloads that are too large for SQS go to S3 first, or are refused."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from celery_sqs_visibility.aws.object_store import ObjectStore
from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import SQSError, UnavailableError, UnrecognizedResponseError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.message_limits import (
    PAYLOAD_BYTES,
    limit_in,
    message_bytes,
    payload_too_large,
    too_large,
)
from celery_sqs_visibility.policy.payload_pointers import (
    ReadablePayloads,
    new_key,
    pointer_body,
    prefix_of,
    size_attribute,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

logger = logging.getLogger(__name__)

#: After these errors SQS may have the message.
_UNANSWERED: Final = (UnavailableError, UnrecognizedResponseError)

#: How many large messages sent to FIFO queues this process remembers.
MAX_REMEMBERED: Final = 10_000

OTHER_PREFIX: Final = (
    "the payload s3://%s/%s of a message that is done stays in S3, as will others like it: its producer has "
    "the prefix %r in payload_store, and this worker %r; give both the same"
)


@dataclass(frozen=True, slots=True)
class PayloadStore:
    """Where the payloads of large messages go: to objects whose keys begin with `prefix`.

    Attributes:
        threshold: messages with more bytes go to S3, as do those beyond the limit of their queue.
    """

    objects: ObjectStore
    threshold: int = MESSAGE_BYTES
    prefix: str = ""
    #: The first key with another prefix, once it was warned about.
    _told: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def readable(self) -> ReadablePayloads:
        """The objects that messages may point to."""
        return ReadablePayloads(self.objects.bucket, self.prefix)

    def owns(self, key: str) -> bool:
        """Whether the object belongs to one message only, and is removed with it. Any thread."""
        prefix = prefix_of(key)
        if prefix is not None and prefix != self.prefix and not self._told:
            self._told.append(key)
            log_safely(logger.warning, OTHER_PREFIX, self.objects.bucket, key, prefix, self.prefix)
        return prefix == self.prefix


class OutgoingMessages:
    """Sends messages of any size. Without a `store`, those beyond the limit of their queue are refused.

    Any thread; the calling thread also makes the requests to S3. Each attempt creates an object of its own,
    because SQS may have the message of an attempt that got no answer.

    Attributes:
        store: where large payloads go; `None` if they are not allowed.
    """

    def __init__(self, store: PayloadStore | None = None) -> None:
        self.store = store
        # MaximumMessageSize by queue URL, where SQS has reported it. Each access is atomic: no lock.
        self._limits: dict[str, int] = {}
        self._sent: OrderedDict[str, object] = OrderedDict()  # by message id, of FIFO queues; atomic, too

    def offloads(self, queue: Queue, size: int) -> bool:
        """Whether the payload of a message of `size` bytes, including attributes, goes to S3."""
        if self.store is None:
            return False
        return size > min(self.store.threshold, self._limits.get(queue.url, MESSAGE_BYTES))

    def send(self, queue: Queue, message: OutgoingMessage) -> None:
        """Send one message.

        Raises:
            MessageTooLargeError: the message was not sent.
            SQSError: SQS or S3 failed. No object is left of a message that SQS refused.
        """
        size = _size(message)
        if self.offloads(queue, size):
            self._send_pointer(queue, message, size)
            return
        if size > MESSAGE_BYTES:
            raise too_large(queue.name, size)
        try:
            queue.sqs.send(queue.url, message)
        except SQSError as error:
            if (limit := self._learned(queue, error)) is None:
                raise
            if self.store is None:
                raise too_large(queue.name, size, limit) from error
            self._send_pointer(queue, message, size)

    def send_batch(
        self, queue: Queue, messages: Sequence[OutgoingMessage], *, urgent: bool = False
    ) -> BatchResult:
        """Send up to ten messages: those with a payload in S3 one by one, the others in one request."""
        alone = [position for position, message in enumerate(messages) if self._offloads(queue, message)]
        together = [position for position in range(len(messages)) if position not in alone]
        failed: dict[int, SQSError] = {}
        if together:
            batch = [messages[position] for position in together]
            try:
                result = queue.sqs.send_batch(queue.url, batch, urgent=urgent)
            except SQSError as error:
                if self._learned(queue, error) is None:
                    raise
                alone += together  # one of them is too large, but SQS refused all
            else:
                failed = {together[i]: error for i, error in result.failed.items()}
                alone += self._too_large(queue, messages, failed)
        for position in alone:
            try:
                self.send(queue, messages[position])
            except SQSError as error:
                failed[position] = error
        return BatchResult(failed)

    def _offloads(self, queue: Queue, message: OutgoingMessage) -> bool:
        return self.store is not None and self.offloads(queue, _size(message))

    def _too_large(
        self, queue: Queue, messages: Sequence[OutgoingMessage], failed: dict[int, SQSError]
    ) -> list[int]:
        """Take out and return those that can go to S3. Without a store, set an error that names a remedy."""
        limits = {position: self._learned(queue, error) for position, error in failed.items()}
        told = {position: limit for position, limit in limits.items() if limit is not None}
        if self.store is None:
            failed |= {
                position: too_large(queue.name, _size(messages[position]), limit)
                for position, limit in told.items()
            }
            return []
        for position in told:
            del failed[position]
        return list(told)

    def _learned(self, queue: Queue, error: SQSError) -> int | None:
        """Return and remember the limit of the queue, if SQS refused a message for its size."""
        if (limit := limit_in(error)) is not None:
            self._limits[queue.url] = limit
        return limit

    def _send_pointer(self, queue: Queue, message: OutgoingMessage, size: int) -> None:
        """Put the body into S3, then send the pointer to it."""
        assert self.store is not None  # noqa: S101 - `offloads` said so
        content = message.body.encode("utf-8", "surrogatepass")
        if len(content) > PAYLOAD_BYTES:
            raise payload_too_large(queue.name, size)
        objects, key = self.store.objects, new_key(self.store.prefix)
        pointer = replace(
            message,
            body=pointer_body(objects.bucket, key),
            attributes={**message.attributes, **size_attribute(len(content))},
        )
        objects.put(key, content)
        try:
            message_id = queue.sqs.send(queue.url, pointer)
        except SQSError as error:
            if not isinstance(error, _UNANSWERED):
                self._discard(objects, key)
            if (limit := limit_in(error)) is not None:
                raise too_large(queue.name, _size(pointer), limit, pointer=True) from error
            raise
        # SQS answers a duplicate with the id of the earlier message, which has an object of its own.
        if queue.fifo and not self._is_new(message_id):
            self._discard(objects, key)

    def _is_new(self, message_id: str) -> bool:
        mine = object()
        is_new = self._sent.setdefault(message_id, mine) is mine
        if len(self._sent) > MAX_REMEMBERED:
            self._sent.popitem(last=False)
        return is_new

    @staticmethod
    def _discard(objects: ObjectStore, key: str) -> None:
        """Remove the object of a message that was not sent. If that fails, the lifecycle rule removes it."""
        try:
            objects.delete([key])
        except SQSError as error:
            logger.debug("the payload %r of a message that was not sent stays in S3: %s", key, error)


def _size(message: OutgoingMessage) -> int:
    """The message's size in bytes, as SQS counts them."""
    return message_bytes(message.body, message.attributes)
