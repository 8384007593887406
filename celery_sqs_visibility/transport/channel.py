"""kombu's Channel on SQS: passes Celery's calls on to the queue consumer and to the directory of queues.

It subclasses `kombu.transport.virtual`'s Channel, not kombu's SQS channel, of which nearly every method that
matters differs. Settling does no I/O here: the settler's threads make the requests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue, no_such_predefined_queue, when_known
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.publish.blocks import batched
from celery_sqs_visibility.delivery.publish.retries import until_deadline
from celery_sqs_visibility.delivery.settlements import Delete
from celery_sqs_visibility.errors import QueueDoesNotExistError, UnreadableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.basic_get import FetchedMessages
from celery_sqs_visibility.transport.codec import encode_message
from celery_sqs_visibility.transport.control_channel import ControlChannel
from celery_sqs_visibility.transport.exchanges import bound_by_apps, refuse_unbound
from celery_sqs_visibility.transport.message import Message, QoS
from celery_sqs_visibility.transport.temporary_queues import is_reply

logger = logging.getLogger(__name__)

#: The module of Celery's own `on_decode_error`, which deletes the message.
CELERYS_CONSUMER: Final = "celery.worker.consumer.consumer"

LOSES_MESSAGES: Final = (
    "this Celery worker consumes from SQS without the bootsteps of celery_sqs_visibility: it would delete "
    "messages that it cannot read, and give nothing back at its end. Import celery_sqs_visibility.Transport "
    "before the worker is made"
)


class Channel(ControlChannel):
    """A channel. Methods whose docstring names no thread belong to Celery's main thread."""

    Message = Message
    QoS = QoS
    do_restore = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._pid = os.getpid()
        self._queue_consumer: QueueConsumer | None = None
        self._fetched = FetchedMessages(connection.options.for_queue, SYSTEM_CLOCK, self.context.payloads)

    @property
    def queue_consumer(self) -> QueueConsumer:
        """Receives and holds this channel's messages. Made for a consumer: producers hold nothing."""
        if self._queue_consumer is None:
            transport = self._transport
            self._queue_consumer = self.context.new_queue_consumer(
                transport.buffer, for_worker=transport.for_worker
            )
            self.raise_prefetch_count()
        return self._queue_consumer

    def delivery(self, delivery_tag: str) -> Delivery | None:
        """The delivery of that tag, if it is held and not settled. Any thread."""
        return self._queue_consumer.ledger.get(delivery_tag) if self._queue_consumer else None

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Celery's prefetch count limits what is received. 0 is no limit."""
        qos: Any = self.qos
        qos.prefetch_count, qos.set_by_consumer = prefetch_count, True
        self.queue_consumer.capacity.prefetch_count = prefetch_count

    def raise_prefetch_count(self) -> None:
        """Let a consumer that sets no prefetch count have ten messages more. The thread that drains."""
        if self._queue_consumer is not None:
            qos: Any = self.qos
            if not qos.set_by_consumer:
                self._queue_consumer.capacity.prefetch_count = qos.raised_prefetch_count()

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,  # noqa: FBT001
        callback: Callable[..., Any] | None,
        consumer_tag: str | None,
        **kwargs: Any,
    ) -> Any:
        """Receive from the queue. Raises `RuntimeError` for a Celery worker that would lose messages."""
        if _loses_messages(callback):
            raise RuntimeError(LOSES_MESSAGES)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        deliver = self._transport._callbacks[queue]  # noqa: SLF001 - virtual.Transport's table of consumers
        if self._consume_control(queue, deliver):
            return

        def acknowledge_and_deliver(payload: dict[str, Any]) -> object:
            self.basic_ack(payload["properties"]["delivery_tag"])
            return deliver(payload)

        source = self.context.temporary_queues.for_consumer(queue)
        self._subscribe(source)
        self.queue_consumer.consume(source, acknowledge_and_deliver if no_ack else deliver)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more for that consumer, which keeps the messages that it has."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues and not self._cancel_control(queue):
            self.queue_consumer.cancel(queue)
            if not self._transport.for_worker and self.context.temporary_queues.created(queue):
                self.queue_consumer.abandon(queue)
                self.context.delete_temporary_queue(queue)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Done: delete the message. Any thread; makes a request only if `basic_get` fetched the message."""
        if self._fetched.acknowledge(delivery_tag):
            return
        if (delivery := self.delivery(delivery_tag)) is not None:
            delivery.settle(Delete())

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Back to the queue at once or, without `requeue`, given up: see `Rejection.reject`. Any thread."""
        if self._fetched.reject(delivery_tag, self.context.redrive, requeue=requeue):
            return
        if (delivery := self.delivery(delivery_tag)) is not None:
            delivery.reject(requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Raise `NotImplementedError`, which kombu's channels do without `requeue`."""
        raise NotImplementedError(
            "there is no recover on SQS: requeue each message, or close the channel, which gives them back"
        )

    def close(self) -> None:
        """Give back what does not run, and close. A forked child has nothing to give back."""
        if self._pid != os.getpid():
            self._consumers.clear()
            super().close()
            return
        super().close()
        if self._queue_consumer is not None:
            self._queue_consumer.close()
        self._fetched.release_all()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
        """Fetch a message, if there is one. With `no_ack` it is deleted, unless it cannot be read."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if no_ack and message is not None and not message.errors:
            self.basic_ack(str(message.delivery_tag))
        return message

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str] | set[str]:
        """The queues that are bound to the exchange, on this connection or by apps. See `refuse_unbound`."""
        queues = super()._lookup(exchange, routing_key, default) or bound_by_apps(exchange, routing_key)
        if not queues:
            refuse_unbound(exchange, routing_key)
        return queues

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Send the message, or leave it to the block of `publish_batch` around. The publishing thread."""
        context = self.context
        attempts = self._publish_attempts
        with attempts:
            target = until_deadline(partial(self._target, queue, message))
            if target is not None:
                encoded = encode_message(
                    message,
                    target,
                    base64_encoded=context.options.sqs_base64_encoding,
                    limits=context.delay_limits(target),
                )
                if not batched(context.new_sender, target, encoded, message):
                    until_deadline(partial(self._send, target, encoded, message))
        attempts.failed = 0

    def _send(self, queue: Queue, encoded: OutgoingMessage, message: dict[str, Any]) -> None:
        try:
            self.context.send(queue, encoded)
        except QueueDoesNotExistError as error:
            self.context.queues.forget(queue.name)
            if self.context.options.predefined_queues:
                raise no_such_predefined_queue(queue, error) from error
            # The queue was deleted after it was found, or is so new that a part of SQS does not know it.
            again = self._target(queue.name, message)
            if again is not None:
                when_known(partial(self.context.send, again, encoded))

    def _target(self, queue: str, message: dict[str, Any]) -> Queue | None:
        """The queue to send to; `None` for a result whose client has gone, and its queue with it."""
        if not is_reply(message, message["properties"]["delivery_info"]["exchange"], queue):
            return self.context.queues.find_or_create(queue)
        try:
            return self.context.queues.find(queue)
        except QueueDoesNotExistError:
            # Created anew, the queue would stay for ever.
            logger.info(
                "dropped a result, since the client that asked for it has gone with its queue %r", queue
            )
            return None

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 - virtual's
        """Fetch one message, for `basic_get`. Nothing extends it beyond its visibility timeout."""
        source = self.context.queues.find_or_create(queue)
        called = SYSTEM_CLOCK.monotonic()
        for received in source.sqs.receive(source.url, 1, 0, self.context.receive_options_of(queue)):
            try:
                pointer, message = self._fetched.with_payload(received, source, called)
                payload = self.context.decode_message(source, message).payload
            except UnreadableError as error:
                raise ValueError(f"a message of queue {queue!r} cannot be read: {error}") from error
            self._fetched.add(message["ReceiptHandle"], source, called, pointer)
            return payload
        raise Empty


def _loses_messages(callback: Any) -> bool:
    """Whether it is of a Celery worker in which Celery still handles bad messages: it deletes them."""
    on_decode_error = getattr(getattr(callback, "__self__", None), "on_decode_error", None)
    return getattr(on_decode_error, "__module__", None) == CELERYS_CONSUMER
