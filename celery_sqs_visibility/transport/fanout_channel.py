"""The part of kombu's Channel that publishes to fanout exchanges, and consumes from them."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.publish.retries import until_deadline
from celery_sqs_visibility.transport.administration import AdministrativeChannel
from celery_sqs_visibility.transport.exchanges import is_an_apps_fanout, use_here


class FanoutChannel(AdministrativeChannel):
    """Methods belong to the thread that has the channel. Without the option none does anything."""

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        # With it kombu calls `_queue_bind` and `_put_fanout`.
        self.supports_fanout = connection.options.supports_fanout

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """The exchange's type. Celery declares none where it publishes to a `Broadcast` queue."""
        exchanges: Any = self.state.exchanges
        if self.supports_fanout and exchange not in exchanges and self._is_known(exchange):
            self.exchange_declare(exchange, "fanout")
        return super().typeof(exchange, default)

    def _is_known(self, exchange: str) -> bool:
        return exchange in self.context.options.predefined_exchanges or is_an_apps_fanout(exchange)

    def _queue_bind(self, *_: Any) -> None:
        """Nothing: a queue is subscribed when it is consumed, as with kombu."""

    def _put_fanout(self, exchange: str, message: dict[str, Any], *_: Any, **__: Any) -> None:
        """Publish to all queues that are subscribed, at once: in a block of `publish_batch`, too."""
        if use_here(exchange):
            return
        attempts = self._publish_attempts
        with attempts:
            until_deadline(partial(self.context.fanout.publish, exchange, message))
        attempts.failed = 0

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Delete the queue, and the subscriptions that this process has made for it."""
        if self.supports_fanout and not self.context.options.predefined_queues:
            self.context.fanout.unsubscribe(queue)
        super()._delete(queue, *args, **kwargs)

    def _subscribe(self, queue: Queue) -> None:
        """Have a queue that is consumed get what is published to the fanout exchanges it is bound to."""
        if not self.supports_fanout:
            return
        bound = dict.fromkeys(each.exchange for each in self.state.queue_bindings(queue.name))
        exchanges = [each for each in bound if self.typeof(each).type == "fanout" and not use_here(each)]
        if exchanges:
            self.context.fanout.subscribe(queue, exchanges)
