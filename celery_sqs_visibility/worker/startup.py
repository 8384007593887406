"""A worker's start: it waits for SQS where that may help, and ends with one clear sentence where it cannot.

Celery would begin anew at once after a passing error, some hundred times a minute, each with a traceback
(celery/worker/consumer/consumer.py: `Consumer.start`), and end with a traceback after any other.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from celery.exceptions import WorkerShutdown
from celery.utils.log import get_logger
from celery.worker.state import maybe_shutdown
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined] # as in kombu's docs

from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.errors import SQSError, UnroutableError
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.exchanges import refuse_type, use_here
from celery_sqs_visibility.transport.temporary_queues import is_of_a_broadcast, temporary
from celery_sqs_visibility.worker.refusals import passes, reason_and_remedy
from celery_sqs_visibility.worker.start_report import report

logger = get_logger(__name__)

#: A waiting worker looks this often for a signal to stop.
STOP_CHECK_SECONDS: Final = 0.2


class QueuesFirst:
    """Takes the place of `Consumer.connect`: connects once the queues are there. Main thread.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
        connect: its own method.
    """

    def __init__(self, consumer: Any, connect: Callable[[], Any]) -> None:
        self._app = consumer.app
        self._connect = connect
        self._started = False

    def __call__(self) -> Any:
        """Wait for the queues and connect.

        Raises:
            WorkerShutdown: the worker was told to stop; or a queue is bound to an exchange that SQS cannot
                have; or, at the worker's start, a queue cannot be used.
        """
        with self._app.connection_for_read() as connection:
            context: BrokerContext = connection.transport.context
            queues = list(self._app.amqp.queues.consume_from.values())
            self._refuse_exchanges(queues, supports_fanout=context.options.supports_fanout)
            try:
                for queue in queues:
                    self._await_queue(context, queue)
            except WorkerShutdown:
                context.end_broadcasts()
                raise
        self._started = True
        connection = self._connect()
        connection.transport.for_worker = True
        return connection

    def _await_queue(self, context: BrokerContext, queue: Any) -> None:
        name = queue.name
        self._await("queue", name, partial(_find, context, queue))
        self._await("dead-letter queue of", name, partial(_find_dead_letter_queue, context, name))
        if not self._started:
            report(context.queues.find(name), context.redrive, context.options)
        if exchanges := _fanout_exchanges(queue):
            self._await("subscription of queue", name, partial(_subscribe, context, name, exchanges))

    @staticmethod
    def _refuse_exchanges(queues: list[Any], *, supports_fanout: bool) -> None:
        for queue in queues:
            for exchange in _exchanges(queue):
                try:
                    refuse_type(exchange.name, exchange.type, supports_fanout=supports_fanout)
                except UnroutableError as error:
                    logger.critical("cannot start, since queue %r cannot be consumed: %s.", queue.name, error)
                    raise WorkerShutdown(1) from error

    def _await(self, kind: str, name: str, find: Callable[[], object]) -> None:
        outage = Outage(logger, f"find the {kind}", name, SYSTEM_CLOCK)
        for failures in itertools.count(1):
            since = SYSTEM_CLOCK.monotonic()
            try:
                find()
            except SQSError as error:
                if not self._is_waited_for(error):
                    _end_worker(kind, name, error)
                outage.failure(error)
                _sleep(pause(failures))
            else:
                outage.success(since)
                return

    def _is_waited_for(self, error: SQSError) -> bool:
        # Queues that were usable may be repaired; a worker that never worked is better noticed at once.
        if self._started:
            return True
        retry = self._app.conf.broker_connection_retry_on_startup is not False
        return retry and passes(error)


def _end_worker(kind: str, name: str, error: SQSError) -> NoReturn:
    logger.critical("cannot start, since %s %r cannot be used: %s", kind, name, reason_and_remedy(error))
    raise WorkerShutdown(1)


def _sleep(seconds: float) -> None:
    until = SYSTEM_CLOCK.monotonic() + seconds
    while (left := until - SYSTEM_CLOCK.monotonic()) > 0:
        maybe_shutdown()
        threading.Event().wait(min(left, STOP_CHECK_SECONDS))
    maybe_shutdown()


def _exchanges(queue: Any) -> list[Any]:
    return [queue.exchange, *(binding.exchange for binding in queue.bindings)]


def _fanout_exchanges(queue: Any) -> list[str]:
    kinds = {each.name: each.type for each in _exchanges(queue) if not use_here(each.name)}
    return [name for name, kind in kinds.items() if kind == "fanout"]


def _find(context: BrokerContext, queue: Any) -> None:
    """Make sure that a queue of the settings exists. A `Broadcast`'s own is this process's, and temporary."""
    if is_of_a_broadcast(queue.name) and _fanout_exchanges(queue):
        arguments = to_rabbitmq_queue_arguments(queue.queue_arguments or {}, expires=queue.expires)
        attributes = temporary(queue.name, auto_delete=queue.auto_delete, arguments=arguments)
        if attributes is not None:
            context.temporary_queues.declare(queue.name, attributes)
            context.temporary_queues.for_consumer(queue.name)
            return
    context.queues.ensure(queue.name)


def _subscribe(context: BrokerContext, name: str, exchanges: list[str]) -> None:
    """Have the queue get what is published to fanout exchanges."""
    context.fanout.subscribe(context.queues.find(name), exchanges)


def _find_dead_letter_queue(context: BrokerContext, name: str) -> None:
    """Make sure that a queue's plain dead-letter queue, if it needs one, exists."""
    queue = context.queues.find(name)
    context.redrive.get(queue, SYSTEM_CLOCK.monotonic())
    context.redrive.find_dead_letter_queue(queue)
