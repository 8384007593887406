"""kombu's Channel on SQS: Celery's calls, passed on to the queue consumer and to the directory of queues.

Our own on `kombu.transport.virtual` and not a subclass of kombu's SQS channel, of which nearly every method
that matters differs. Settling does no I/O here: acknowledging is a note to the settler's threads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, Final

from kombu.serialization import registry
from kombu.transport import virtual
from kombu.utils.json import loads as kombu_loads

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.model import Delete, Delivery, Renew
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    CredentialsRefusedError,
    QueueDoesNotExistError,
    UnreadableError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport import publish_deadline, publish_scope
from celery_sqs_visibility.transport.administration import AdministrativeChannel
from celery_sqs_visibility.transport.basic_get import Fetched
from celery_sqs_visibility.transport.codec import TYPED, seal, seal_again, with_eta
from celery_sqs_visibility.transport.decompression import inflate
from celery_sqs_visibility.transport.exchanges import refuse_unbound
from celery_sqs_visibility.transport.temporary_queues import is_reply, log_dropped_reply

#: What a body that Celery sends is, and how its text is encoded.
JSON: Final = "application/json"
UTF_8: Final = ("utf-8", "UTF-8", "us-ascii")

#: Where Celery's own ways to end with a bad message are.
CELERYS_CONSUMER: Final = "celery.worker.consumer.consumer"

LOSES_MESSAGES: Final = (
    "this Celery worker consumes from SQS without the bootsteps of celery_sqs_visibility: it would delete "
    "messages that it cannot read, and give nothing back at its end. Import celery_sqs_visibility.Transport "
    "before the worker is made"
)

#: As in an envelope, so in a body.
TYPED_BYTES: Final = TYPED.encode()

#: What is worth another attempt to publish: what passes by itself, and credentials that may be rotated ones.
RETRIED: Final = (*PASSING_ERRORS, CredentialsRefusedError)


class Attempts:
    """The attempts to publish by one of kombu's Connections, which one thread at a time uses.

    Attributes:
        failed: how many failed in a row for a reason that may pass.
    """

    failed = 0


class Message(virtual.Message):
    """A kombu message that knows its delivery.

    Attributes:
        delivery: what to settle; `None` where the message was fetched with `basic_get`.
    """

    def __init__(self, payload: dict[str, Any], channel: Channel, **kwargs: Any) -> None:
        headers = payload.get("headers") or {}
        bare = payload
        if "compression" in headers:  # without it, since kombu would decompress it to the end
            bare = {**payload, "headers": {k: v for k, v in headers.items() if k != "compression"}}
        try:
            super().__init__(bare, channel=channel, **kwargs)
            if headers.get("compression"):
                self.body = inflate(self.body, headers["compression"])
        except Exception:  # noqa: BLE001 - kombu keeps such for its consumer, which tells `on_decode_error`
            super().__init__({**bare, "body": None}, channel=channel, **kwargs)
            self.errors = [sys.exc_info()]
        self._raw = payload
        self.headers = headers
        self.delivery: Delivery | None = channel.delivery(self.delivery_tag)

    def _decode(self) -> Any:
        """Its decoded body. Most are plain JSON, which kombu reads slowly, looking for typed values."""
        body: Any = self.body
        if self._is_plain_json():
            with suppress(Exception):  # which kombu then raises in its own words
                return json.loads(body.decode(self.content_encoding))
        return super()._decode()

    def _is_plain_json(self) -> bool:
        return (
            self.content_type == JSON
            and JSON in (self.accept or ())
            and self.content_encoding in UTF_8
            and isinstance(self.body, bytes)
            and TYPED_BYTES not in self.body
            and registry._decoders.get(JSON) is kombu_loads  # noqa: SLF001 - the user's would read it otherwise
        )

    def give_up(self, reason: str, on_exhausted: str | None = None, **attributes: str) -> None:
        """Its task failed for good: see `QueueConsumer.give_up`. Any thread."""
        if self.delivery is not None and self.channel is not None:
            self.delivery.give_up(reason, lambda: seal_again(self._raw), on_exhausted, **attributes)

    def put_off(self, eta: float, retries: int) -> Renew | None:
        """How to have its task wait in SQS for another ETA; `None` if it cannot.

        Args:
            eta: seconds since the epoch.
            retries: how many runs failed before.
        """
        # Protocol 1 has the ETA in its body.
        if self.delivery is None or self.channel is None or "task" not in self.headers:
            return None
        payload = {**self._raw, "headers": with_eta(self.headers, eta, retries)}
        parking: Parking = self.channel.queue_consumer.parking
        return parking.renewal(self.delivery, eta, lambda: seal_again(payload), self._raw)

    def refuse(self, reason: str, *, others_may: bool = False) -> None:
        """No task of this worker can be made of it: see `Failures.refuse`. Never deleted."""
        if self.delivery is not None and self.channel is not None:
            self.delivery.refuse(reason, seal_again(self._raw), others_may=others_may)
            self._state = "REJECTED"


class QoS(virtual.QoS):
    """Nothing is tracked here: the consumer's ledger does it, and outlives the channel."""

    restore_at_shutdown = False

    def append(self, message: Message, delivery_tag: str) -> None:
        """The ledger knows it already."""


class Channel(AdministrativeChannel):
    """One channel. Methods without a word on threads belong to Celery's main thread."""

    Message = Message
    QoS = QoS
    do_restore = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._pid = os.getpid()
        self._queue_consumer: QueueConsumer | None = None
        self._fetched = Fetched(
            connection.options.visibility_timeout, lambda: self.broker.redrive, SYSTEM_CLOCK
        )
        self._in_hand: set[str] | None = set()  # handed over and maybe settled; `None` after basic_qos

    @property
    def queue_consumer(self) -> QueueConsumer:
        """What this channel holds. Made for a consumer: producers hold nothing."""
        if self._queue_consumer is None:
            transport = self._transport
            self._queue_consumer = self.broker.new_queue_consumer(
                transport.buffer, for_worker=transport.for_worker
            )
            self.make_room()
        return self._queue_consumer

    def delivery(self, delivery_tag: str) -> Delivery | None:
        """The delivery of that tag, if anybody has it in hand. Any thread."""
        return self._queue_consumer.ledger.get(delivery_tag) if self._queue_consumer else None

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Celery's prefetch count, of which the room to receive is made. 0 is no limit."""
        self._in_hand = None
        self.qos.prefetch_count = prefetch_count
        self.queue_consumer.capacity.prefetch_count = prefetch_count

    def make_room(self) -> None:
        """Let a consumer that was told no prefetch count have ten more, whatever it has in hand.

        As kombu's own SQS transport, which receives ten for each `drain_events`. The thread that drains.
        """
        if self._queue_consumer is not None and self._in_hand is not None:
            self._in_hand = {tag for tag in self._in_hand if self._queue_consumer.ledger.get(tag) is not None}
            self._queue_consumer.capacity.prefetch_count = BATCH_ENTRIES + len(self._in_hand)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,  # noqa: FBT001
        callback: Callable[[Message], object],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Receive from the queue from now on.

        Raises:
            RuntimeError: it is for a Celery worker without our bootsteps, which would lose messages.
        """
        if _loses_messages(callback):
            raise RuntimeError(LOSES_MESSAGES)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        hand_over = self.connection._callbacks[queue]  # noqa: SLF001 - virtual.Transport's table of consumers
        self.queue_consumer.consume(
            self.broker.queues.find_or_create(queue),
            self._without_ack(hand_over) if no_ack else self._noted(hand_over),
        )

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more for that consumer; what it was handed stays its own."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self.queue_consumer.cancel(queue)
            if self.is_temporary(queue) and not self._transport.for_worker:
                self.queue_consumer.abandon(queue)
                self.broker.temporary_queues.delete(queue)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Done: delete the message. Any thread; does no I/O, but for what `basic_get` fetched."""
        if self._fetched.acknowledge(delivery_tag):
            return
        if (delivery := self.delivery(delivery_tag)) is not None:
            delivery.settle(Delete())

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Back to the queue at once or, without `requeue`, given up: see `Failures.reject`. Any thread."""
        if self._fetched.reject(delivery_tag, requeue=requeue):
            return
        if (delivery := self.delivery(delivery_tag)) is not None:
            delivery.reject(requeue=requeue)

    def close(self) -> None:
        """Give back what does not run, and close. In a forked child nothing is the child's to give back."""
        if self._pid != os.getpid():
            self._consumers.clear()
            super().close()
            return
        super().close()
        if self._queue_consumer is not None:
            self._queue_consumer.close()
        self._fetched.give_back()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Message | None:  # noqa: FBT001, FBT002
        """Fetch a message, if there is one. With `no_ack` it is deleted, unless it cannot be read."""
        message: Message | None = super().basic_get(queue, no_ack, **kwargs)
        if no_ack and message is not None and not message.errors:
            self.basic_ack(message.delivery_tag)
        return message

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Collection[str]:
        """The queues that a publication goes to: what is bound, on this connection.

        Raises:
            UnroutableError: there are none, and the exchange is not Celery's own.
        """
        queues: Collection[str] = super()._lookup(exchange, routing_key, default)
        if not queues:
            refuse_unbound(exchange, routing_key)
        return queues

    def _noted(self, hand_over: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
        def note_and_hand_over(payload: dict[str, Any]) -> object:
            if self._in_hand is not None:
                self._in_hand.add(payload["properties"]["delivery_tag"])
            return hand_over(payload)

        return note_and_hand_over

    def _without_ack(
        self, hand_over: Callable[[dict[str, Any]], object]
    ) -> Callable[[dict[str, Any]], object]:
        def acknowledge_and_hand_over(payload: dict[str, Any]) -> object:
            self.basic_ack(payload["properties"]["delivery_tag"])
            return hand_over(payload)

        return acknowledge_and_hand_over

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Send it, or have it sent by the block of `publish_batch` around. The publishing thread."""
        attempts = self._transport.attempts
        try:
            target = publish_deadline.send(partial(self._target, queue, message))
            if target is not None:
                outgoing = seal(message, target, base64_encoded=self.broker.options.sqs_base64_encoding)
                if not publish_scope.batched(self.broker, target, outgoing, message):
                    publish_deadline.send(partial(self._send, target, outgoing, message))
        except RETRIED:
            attempts.failed += 1
            raise
        attempts.failed = 0

    def _send(self, queue: Queue, outgoing: OutgoingMessage, message: dict[str, Any]) -> None:
        try:
            queue.sqs.send(queue.url, outgoing)
        except QueueDoesNotExistError:
            self.broker.queues.forget(queue.name)
            if self.broker.options.predefined_queues:
                raise
            # It was deleted after it was found.
            again = self._target(queue.name, message)
            if again is not None:
                again.sqs.send(again.url, outgoing)

    def _target(self, queue: str, message: dict[str, Any]) -> Queue | None:
        """Where the message goes; `None` if it is a result whose client has gone, with its queue."""
        if not is_reply(message, message["properties"]["delivery_info"]["exchange"], queue):
            return self.broker.queues.find_or_create(queue)
        try:
            return self.broker.queues.find(queue)
        except QueueDoesNotExistError:
            log_dropped_reply(queue)
            return None

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        try:
            super()._new_queue(queue, **kwargs)
        except RETRIED:
            self._transport.attempts.failed += 1
            raise

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 - virtual's
        """Fetch one message, for `basic_get`: held by nobody, to be settled within its visibility timeout."""
        source = self.broker.queues.find_or_create(queue)
        options: ReceiveOptions = self.broker.receive_options
        called = SYSTEM_CLOCK.monotonic()
        for message in source.sqs.receive(source.url, 1, 0, options):
            try:
                payload = self.broker.open_message(source, message).payload
            except UnreadableError as error:
                raise ValueError(f"a message of queue {queue!r} cannot be read: {error}") from error
            self._fetched.add(message["ReceiptHandle"], source, called)
            return payload
        raise Empty


def _loses_messages(callback: Any) -> bool:
    """Whether it is of a Celery worker whose bad messages are still Celery's, which deletes them."""
    on_decode_error = getattr(getattr(callback, "__self__", None), "on_decode_error", None)
    return getattr(on_decode_error, "__module__", None) == CELERYS_CONSUMER
