"""The half of kombu's Channel that declares, counts and deletes queues."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined] # as in kombu's docs

from celery_sqs_visibility.aws.queue_counts import DELAYED, HIDDEN, VISIBLE, count
from celery_sqs_visibility.command_line import ends_command
from celery_sqs_visibility.delivery.publish.retries import PublishAttempts
from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.exchanges import refuse_type
from celery_sqs_visibility.transport.temporary_queues import is_of_a_broadcast, temporary


class AdministrativeChannel(virtual.Channel):
    """Methods belong to the thread that has the channel. What Celery does unasked costs no request."""

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection  # virtual.Channel forgets it when it closes
        self._attempts = PublishAttempts()

    @property
    def context(self) -> BrokerContext:
        """What the connections of this process share."""
        return cast("BrokerContext", self._transport.context)

    @property
    def _publish_attempts(self) -> PublishAttempts:
        if (client := self._transport.client) is not None:  # kombu forgets it when the connection is closed
            self._attempts = self.context.publish_attempts(client)
        return self._attempts

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's name
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Note an exchange. See `refuse_type` for those that SQS cannot have."""
        kind = type or "direct"
        refuse_type(exchange or "", kind, supports_fanout=self.context.options.supports_fanout)
        super().exchange_declare(exchange, kind, *args, **kwargs)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Forget the exchange and its bindings. No queue is deleted, as in AMQP."""
        state: Any = self.state
        bound = [key for key in state.bindings if key.exchange == exchange]
        if if_unused and bound:
            return
        for queue, _, routing_key in bound:
            state.binding_delete(queue, exchange, routing_key)
        state.exchanges.pop(exchange, None)

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **kwargs: Any) -> Any:
        """Give `queue_declare` the queue's expiry by its AMQP name, `x-expires`."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
        """Create the queue if it is missing; `passive` asks instead how many messages are visible in it.

        Celery's workers and producers never ask that: it is a request, and a permission.
        """
        declared = super().queue_declare(queue, passive, **kwargs)
        return declared._replace(message_count=self._count(declared.queue, VISIBLE)) if passive else declared

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:  # noqa: FBT001, FBT002
        """Delete the queue with what is in it, unless it is in use or not empty.

        It is in use if it is consumed on this connection, or if messages of it are hidden: somebody processes
        them or waits for them. It is empty if it has no message, hidden and delayed ones included. The counts
        of SQS are approximate: a message may be missing from them for a minute. Without them nothing is
        deleted, and `SQSError` is raised.
        """
        if if_unused and (queue in self._transport._callbacks or self._count(queue, HIDDEN)):  # noqa: SLF001
            return
        if if_empty and self._count(queue, VISIBLE, HIDDEN, DELAYED):
            return
        self._delete(queue)
        self.state.queue_bindings_delete(queue)

    def _count(self, queue: str, *kinds: str) -> int:
        try:
            return count(self.context.queues.find(queue), *kinds)
        except QueueDoesNotExistError:
            self.context.queues.forget(queue)
            raise

    def _new_queue(
        self, queue: str, *, auto_delete: bool = False, arguments: dict[str, Any] | None = None, **_: Any
    ) -> None:
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
        """0: virtual counts at each declaration, which would be a request and a permission."""
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
        if not self.context.options.predefined_queues:
            with suppress(QueueDoesNotExistError):
                target = self.context.queues.find(queue)
                target.sqs.delete_queue(target.url)
            self.context.queues.forget(queue)
