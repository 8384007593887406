"""kombu's Channel on SQS: passes Celery's calls on to the queue consumer and to the directory of queues.

It subclasses `kombu.transport.virtual.Channel`, because kombu's SQS channel differs in nearly every method
that matters. Settling does no I/O here: the pump's threads make the requests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined] # as in kombu's docs

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import (
    DELAYED,
    HIDDEN,
    VISIBLE,
    Queue,
    count,
    no_such_predefined_queue,
    when_known,
)
from celery_sqs_visibility.command_line import ends_command
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.publish.blocks import batched
from celery_sqs_visibility.delivery.publish.retries import PublishAttempts, until_deadline
from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.control_exchanges import ControlExchanges
from celery_sqs_visibility.transport.encoding import encode_message
from celery_sqs_visibility.transport.routing import (
    DirectExchange,
    is_an_apps_fanout,
    refuse_type,
    use_here,
)
from celery_sqs_visibility.transport.temporary_queues import is_of_a_broadcast, is_reply, temporary

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import Delivery
    from celery_sqs_visibility.delivery.consumer import QueueConsumer
    from celery_sqs_visibility.transport import message
    from celery_sqs_visibility.transport.basic_get import FetchedMessages

logger = logging.getLogger(__name__)

#: Modules of a consumer's `on_decode_error`: Celery's own deletes an unreadable message, ours does not.
CELERYS_CONSUMER: Final = "celery.worker.consumer.consumer"
OUR_CONSUMER: Final = "celery_sqs_visibility.worker.validation"

LOSES_MESSAGES: Final = (
    "this Celery worker consumes from SQS without the bootsteps of celery_sqs_visibility: it would delete "
    "messages that it cannot read, and give nothing back at its end. Import celery_sqs_visibility.Transport "
    "before the worker is made"
)


class Channel(virtual.Channel):
    """A channel. Called by the thread that owns it, Celery's main thread, unless a method says otherwise.

    Calls that Celery makes by itself cost no request.
    """

    do_restore = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        exchange_types: Any = self.exchange_types
        exchange_types["direct"] = DirectExchange(self)
        self._transport = connection  # virtual.Channel drops its reference when it closes
        self._pid = os.getpid()
        # If true, kombu calls `_queue_bind` and `_put_fanout`.
        self.supports_fanout = connection.options.supports_fanout
        self._control = ControlExchanges(connection)
        self._attempts = PublishAttempts()
        self._queue_consumer: QueueConsumer | None = None
        self._consumed: dict[str, str] = {}  # queue by consumer tag
        self._fetched: FetchedMessages | None = None  # by `basic_get`

    @cached_property
    def Message(self) -> type[message.Message]:  # type: ignore[override]  # noqa: N802 - kombu's name
        """The class of received messages. Imported lazily, like `QoS`, because producers receive none."""
        from celery_sqs_visibility.transport.message import Message  # noqa: PLC0415

        return Message

    @cached_property
    def QoS(self) -> type[message.QoS]:  # type: ignore[override]  # noqa: N802 - kombu's name
        """The class of prefetch counts."""
        from celery_sqs_visibility.transport.message import QoS  # noqa: PLC0415

        return QoS

    @property
    def context(self) -> BrokerContext:
        """What the connections of this process share. Any thread."""
        context: BrokerContext = self._transport.context
        return context

    @property
    def queue_consumer(self) -> QueueConsumer:
        """Receives and holds this channel's messages. Created for a consumer: producers hold nothing."""
        if self._queue_consumer is None:
            transport = self._transport
            self._queue_consumer = self.context.new_queue_consumer(
                transport.buffer, for_worker=transport.for_worker
            )
            self.raise_prefetch_count()
        return self._queue_consumer

    def delivery(self, delivery_tag: str) -> Delivery | None:
        """The delivery with that tag, if it is held and not settled. Any thread."""
        return self._queue_consumer.holder.get(delivery_tag) if self._queue_consumer else None

    def close(self) -> None:
        """Give back messages that are not running, and close. A forked child has nothing to give back."""
        is_ours = self._pid == os.getpid()
        if is_ours:
            for consumer_tag in list(self._consumed):
                self.basic_cancel(consumer_tag)
        super().close()
        if is_ours and self._queue_consumer is not None:
            self._queue_consumer.close()
        if is_ours and self._fetched is not None:
            self._fetched.release_all()

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's name
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Declare an exchange. Types that SQS can't have are refused."""
        kind = type or "direct"
        refuse_type(exchange or "", kind, supports_fanout=self.context.options.supports_fanout)
        super().exchange_declare(exchange, kind, *args, **kwargs)
        self._control.declared = exchange

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Forget the exchange and its bindings. Like in AMQP, no queue is deleted."""
        state: Any = self.state
        bound = [key for key in state.bindings if key.exchange == exchange]
        if if_unused and bound:
            return
        for queue, _, routing_key in bound:
            state.binding_delete(queue, exchange, routing_key)
        state.exchanges.pop(exchange, None)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """The exchange's type. Celery does not declare the exchange before it publishes to a `Broadcast`."""
        exchanges: Any = self.state.exchanges
        if self.supports_fanout and exchange not in exchanges and self._is_fanout(exchange):
            self.exchange_declare(exchange, "fanout")
        return super().typeof(exchange, default)

    def _is_fanout(self, exchange: str) -> bool:
        return exchange in self.context.options.predefined_exchanges or is_an_apps_fanout(exchange)

    def get_table(self, exchange: str) -> Any:
        """The exchange's bindings on this connection; empty if the exchange was not declared here."""
        exchanges: Any = self.state.exchanges
        return exchanges.get(exchange, {}).get("table", [])

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **kwargs: Any) -> Any:
        """Pass the queue's expiry to `queue_declare` under its AMQP name, `x-expires`."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
        """Create the queue if it is missing; with `passive`, count its visible messages instead.

        Celery's workers and producers never count, which would take a request and a permission.
        """
        try:
            declared = super().queue_declare(queue, passive, **kwargs)
        finally:
            self._control.declared = None
        return declared._replace(message_count=self._count(declared.queue, VISIBLE)) if passive else declared

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind the queue. Celery's own queues, whose names change, are not added to the exchange's table."""
        if exchange and use_here(exchange):
            state: Any = self.state
            state.binding_declare(queue, exchange, routing_key, arguments)
        else:
            super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:  # noqa: FBT001, FBT002
        """Delete the queue with its messages, unless `if_unused` or `if_empty` forbids it.

        A queue is in use if it is consumed on this connection or has hidden messages, which a consumer holds
        or waits for. It is empty if it has no messages, hidden and delayed ones included. SQS's counts are
        approximate: a message may be missing for a minute.

        Raises:
            SQSError: SQS does not return the counts. Nothing is deleted.
        """
        if if_unused and (self._is_consumed_here(queue) or self._count(queue, HIDDEN)):
            return
        if if_empty and self._count(queue, VISIBLE, HIDDEN, DELAYED):
            return
        self._delete(queue)
        self.state.queue_bindings_delete(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Forget the binding. The queue itself serves this process's next command."""
        self.state.queue_bindings_delete(queue)

    def consumes(self, queue: str) -> bool:
        """Returns whether the channel has a consumer of the queue. Any thread."""
        return queue in list(self._consumed.values())

    def _is_consumed_here(self, queue: str) -> bool:
        channels: list[Channel] = self._transport.channels
        return any(channel.consumes(queue) for channel in list(channels))

    def _count(self, queue: str, *kinds: str) -> int:
        try:
            return count(self.context.queues.find(queue), *kinds)
        except QueueDoesNotExistError:
            self.context.queues.forget(queue)
            raise

    def _queue_bind(self, *_: Any) -> None:
        """Do nothing: like in kombu, a queue is subscribed when it is consumed."""

    def _new_queue(
        self, queue: str, *, auto_delete: bool = False, arguments: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if self._control.declare(queue):
            return
        attributes = temporary(queue, auto_delete=auto_delete, arguments=arguments)
        with self._publish_attempts:
            if attributes is None:
                self.context.queues.find_or_create(queue)
            elif self.context.options.supports_fanout and is_of_a_broadcast(queue):
                self.context.temporary_queues.declare(queue, attributes)
            else:
                self.context.temporary_queues.find_or_create(queue, attributes)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        try:
            self.context.queues.find(queue)
        except QueueDoesNotExistError:
            return False
        return True

    def _size(self, queue: str) -> int:  # noqa: ARG002 - virtual's
        """Return 0: virtual calls this at each declaration, and a count takes a request and a permission."""
        return 0

    def _purge(self, queue: str) -> int:
        try:
            target = self.context.queues.find_or_create(queue)
            purged = int(target.sqs.queue_attributes(target.url, [VISIBLE]).get(VISIBLE, 0))
            target.sqs.purge(target.url)
        except SQSError as error:
            # celery/bin/purge.py counts a queue that raises one of `channel_errors` as empty.
            ended = ends_command(error)
            if ended is error:
                raise
            raise ended from error
        return purged

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        """Delete the queue, and the subscriptions that this process has made for it.

        Predefined queues are kept. Celery's own queues are deleted when they are no longer consumed.
        """
        context = self.context
        if self._control.exchange_of(queue) is not None or context.options.predefined_queues:
            return
        if self.supports_fanout:
            context.fanout.unsubscribe(queue)
        with suppress(QueueDoesNotExistError):
            target = context.queues.find(queue)
            target.sqs.delete_queue(target.url)
        context.queues.forget(queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Limit the number of received messages to Celery's prefetch count; 0 is no limit."""
        qos: Any = self.qos
        qos.prefetch_count, qos.set_by_consumer = prefetch_count, True
        self.queue_consumer.set_prefetch_count(prefetch_count)

    def raise_prefetch_count(self) -> None:
        """Let a consumer without a prefetch count receive ten more messages. The thread that drains."""
        if self._queue_consumer is not None:
            qos: Any = self.qos
            if not qos.set_by_consumer:
                self._queue_consumer.set_prefetch_count(qos.raised_prefetch_count())

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,  # noqa: FBT001
        callback: Callable[..., Any] | None,
        consumer_tag: str | None,
        **_: Any,
    ) -> Any:
        """Receive from the queue, for a Celery worker or for any other consumer.

        Raises:
            RuntimeError: it is a Celery worker without our bootsteps, which would lose messages.
        """
        decode_errors_go_to = _module_of_on_decode_error(callback)
        if decode_errors_go_to == CELERYS_CONSUMER:
            raise RuntimeError(LOSES_MESSAGES)
        deliver = (
            partial(self._deliver_acknowledged, callback)
            if no_ack
            else partial(self._deliver, callback, self.qos.append)
        )
        self._consumed[str(consumer_tag)] = queue
        if not self._control.consume(queue, deliver):
            source = self.context.temporary_queues.for_consumer(queue)
            self._subscribe(source)
            is_workers = decode_errors_go_to == OUR_CONSUMER
            open_message = None if is_workers else self.context.decode_any_message
            self.queue_consumer.consume(source, deliver, open_message)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop receiving for a consumer, which keeps the messages that it has."""
        queue = self._consumed.pop(str(consumer_tag), None)
        if queue is None or self.consumes(queue) or self._control.cancel(queue):
            return
        self.queue_consumer.cancel(queue)
        if not self._transport.for_worker and self.context.temporary_queues.created(queue):
            self.queue_consumer.abandon(queue)
            self.context.delete_temporary_queue(queue)

    def _deliver(
        self, callback: Any, append: Any, payload: dict[str, Any], delivery: Delivery | None = None
    ) -> object:
        message = self.Message(payload, self, delivery=delivery)
        append(message, message.delivery_tag)
        return callback(message)

    def _deliver_acknowledged(
        self, callback: Any, payload: dict[str, Any], delivery: Delivery | None = None
    ) -> object:
        self.basic_ack(payload["properties"]["delivery_tag"])
        return callback(self.Message(payload, self, delivery=delivery))

    def _subscribe(self, queue: Queue) -> None:
        """Subscribe a consumed queue to the fanout exchanges it is bound to."""
        if not self.supports_fanout:
            return
        bound = dict.fromkeys(each.exchange for each in self.state.queue_bindings(queue.name))
        exchanges = [each for each in bound if self.typeof(each).type == "fanout" and not use_here(each)]
        if exchanges:
            self.context.fanout.subscribe(queue, exchanges)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
        """Fetch a message of any format; `None` if there is none.

        With `no_ack` it is deleted, unless its body can't be decompressed.
        """
        message = super().basic_get(queue, no_ack, **kwargs)
        if no_ack and message is not None and not message.errors:
            self.basic_ack(str(message.delivery_tag))
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 - virtual's
        """Fetch one message, for `basic_get`. It is hidden for one visibility timeout and not extended."""
        context = self.context
        if self._fetched is None:
            from celery_sqs_visibility.transport.basic_get import FetchedMessages  # noqa: PLC0415

            self._fetched = FetchedMessages(context.options.for_queue, SYSTEM_CLOCK, context.payloads)
        source = context.queues.find_or_create(queue)
        message = self._fetched.fetch(source, context.receive_options_of(queue))
        if message is None:
            raise Empty
        return context.decode_any_message(source, message).payload

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Delete the message. Any thread; makes a request only if `basic_get` fetched the message."""
        if self._fetched is not None and self._fetched.acknowledge(delivery_tag):
            return
        if (delivery := self.delivery(delivery_tag)) is not None:
            delivery.settle(Delete())

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Requeue the message if `requeue`, otherwise give it up by `Rejection.reject`. Any thread."""
        fetched = self._fetched
        if fetched is not None and fetched.reject(delivery_tag, self.context.redrive, requeue=requeue):
            return
        if (delivery := self.delivery(delivery_tag)) is not None:
            delivery.reject(requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Raise `NotImplementedError`, as kombu's channels do without `requeue`."""
        raise NotImplementedError(
            "there is no recover on SQS: requeue each message, or close the channel, which gives them back"
        )

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish the message: to SQS, to SNS, or by remote control. The publishing thread."""
        if exchange and self._control.publish(message, exchange, routing_key):
            return None
        return super().basic_publish(message, exchange, routing_key, **kwargs)

    @property
    def _publish_attempts(self) -> PublishAttempts:
        if (client := self._transport.client) is not None:  # `None` once the connection is closed
            self._attempts = self.context.publish_attempts(client)
        return self._attempts

    def _put_fanout(self, exchange: str, message: dict[str, Any], *_: Any, **__: Any) -> None:
        """Publish to all subscribed queues at once, even within `publish_batch`."""
        if use_here(exchange):
            return
        attempts = self._publish_attempts
        with attempts:
            until_deadline(partial(self.context.fanout.publish, exchange, message))
        attempts.failed = 0

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Send the message, or leave it to an enclosing `publish_batch`. The publishing thread."""
        context = self.context
        attempts = self._publish_attempts
        with attempts:
            target = until_deadline(partial(self._target, context, queue, message))
            if target is not None:
                encoded = encode_message(
                    message,
                    target,
                    base64_encoded=context.options.sqs_base64_encoding,
                    limits=context.delay_limits(target),
                )
                if not batched(context.new_sender, target, encoded, message):
                    until_deadline(partial(self._send, context, target, encoded, message))
        attempts.failed = 0

    def _send(
        self, context: BrokerContext, queue: Queue, encoded: OutgoingMessage, message: dict[str, Any]
    ) -> None:
        try:
            context.send(queue, encoded)
        except QueueDoesNotExistError as error:
            context.queues.forget(queue.name)
            if context.options.predefined_queues:
                raise no_such_predefined_queue(queue, error) from error
            # The queue was deleted after it was found, or is so new that some of SQS's servers don't know it.
            again = self._target(context, queue.name, message)
            if again is not None:
                when_known(partial(context.send, again, encoded))

    def _target(self, context: BrokerContext, queue: str, message: dict[str, Any]) -> Queue | None:
        """The queue to send to; `None` for a result whose client, and so its queue, no longer exists."""
        if not is_reply(message, message["properties"]["delivery_info"]["exchange"], queue):
            return context.queues.find_or_create(queue)
        try:
            return context.queues.find(queue)
        except QueueDoesNotExistError:
            # A queue created here would stay for ever.
            logger.info(
                "dropped a result, since the client that asked for it has gone with its queue %r", queue
            )
            return None


def _module_of_on_decode_error(callback: Any) -> str | None:
    """The module of the `on_decode_error` of the kombu Consumer that owns the callback, if any."""
    on_decode_error = getattr(getattr(callback, "__self__", None), "on_decode_error", None)
    return getattr(on_decode_error, "__module__", None)
