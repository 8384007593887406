"""Queues of an app, by its settings and as SQS shows them. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from celery import Celery

from celery_sqs_visibility.aws.queues import DELAYED, HIDDEN, VISIBLE, Queue, count, counts
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.queue_metrics import AGE, QueueMetrics
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.routing import queue_of_route

T = TypeVar("T")

R = TypeVar("R")


def queue_names(app: Celery, options: Options) -> list[str]:
    """Celery's names of the app's queues, in the order of the settings. Makes no request.

    These are the queues that workers consume (`task_queues` or `task_default_queue`), those that
    `task_routes` and tasks name, and the names in the option `queues` that aren't globs. With
    `predefined_queues` there are only those.
    """
    return list(options.predefined_queues) or named_queues(app, options)


def named_queues(app: Celery, options: Options) -> list[str]:
    """Celery's names of the app's queues as in `queue_names`, ignoring `predefined_queues`."""
    named = [name for name in options.queues if not any(sign in name for sign in "*?[")]
    routed = [name for route in _routes(app.conf.task_routes) if (name := queue_of_route(route))]
    of_tasks = [str(name) for task in app.tasks.values() if (name := getattr(task, "queue", None))]
    return list(dict.fromkeys([*app.amqp.queues, *routed, *of_tasks, *named]))


def _routes(setting: Any) -> Iterable[Any]:
    """The routes in `task_routes`, except functions, which could only be called with a task."""
    routers = setting if isinstance(setting, list | tuple) else [setting]
    for router in routers:
        if isinstance(router, Mapping):
            yield from router.values()
        elif isinstance(router, list | tuple):
            yield from (pair[1] for pair in router if isinstance(pair, list | tuple) and len(pair) == 2)  # noqa: PLR2004 - pattern and route


def for_each(things: Iterable[T], ask: Callable[[T], R]) -> list[R]:
    """Call `ask` for all things in parallel. Returns the answers in order. Any thread except an event loop's.

    An exception of `ask` is raised when all calls have ended.
    """
    things = list(things)
    if not things:
        return []
    with ThreadPoolExecutor(min(len(things), 16), "sqs-ask") as threads:
        return list(threads.map(ask, things))


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A queue and its attributes, as far as SQS shows them. `error` says why something is missing."""

    queue: Queue | None = None
    attributes: Mapping[str, str] | None = None
    error: SQSError | None = None


def inspect_queue(find: Callable[[], Queue], attributes: Sequence[str] = ("All",)) -> FoundQueue:
    """Find a queue and ask for its attributes. Any thread. Errors of SQS are part of the result."""
    queue = None
    try:
        queue = find()
        return FoundQueue(queue, queue.sqs.queue_attributes(queue.url, attributes))
    except SQSError as error:
        return FoundQueue(queue, error=error)


def dead_letter_queue(broker: BrokerContext, queue: Queue) -> Queue | None:
    """The dead-letter queue in the redrive policy or the option `dead_letter_queue`; `None` if none.

    The policy is cached, as in workers.

    Raises:
        SQSError: the dead-letter queue could not be found, or the policy is unknown and there is no option.
    """
    if broker.redrive.get(queue, SYSTEM_CLOCK.monotonic()) is not None:
        return broker.redrive.dead_letter_queue(queue)
    name = broker.options.for_queue(queue.name).dead_letter_queue
    if name is None and (error := broker.redrive.why_unknown(queue)) is not None:
        raise error
    letters = broker.queues.find(name) if name else None  # `redrive` would create it
    return None if letters is None or letters.url == queue.url else letters


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The numbers of messages in a queue, as SQS approximates them; `None` if unknown.

    Attributes:
        queue: Celery's name of the queue.
        visible: messages that a receive may bring.
        in_flight: received messages that are hidden, while they run or wait for a retry.
        delayed: messages that were sent with a delay that is not over.
        oldest_age_seconds: since the oldest message was sent; from CloudWatch, a minute or two old.
        dead_letters: messages in its dead-letter queue, which other queues may share.
        error: why a figure is unknown.
    """

    queue: str
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    oldest_age_seconds: float | None = None
    dead_letters: int | None = None
    error: SQSError | None = None


def queue_depths(
    context: BrokerContext, names: Iterable[str], metrics: QueueMetrics | None = None
) -> list[QueueDepth]:
    """Ask SQS about queues by Celery's names, in parallel, and CloudWatch if `metrics` are given.

    Any thread except an event loop's. Makes two requests a queue, one more if its URL is unknown, and those
    of `QueueMetrics`. Errors of SQS are part of the depths.
    """
    depths = for_each(names, lambda name: _depth(context, name))
    if metrics is None:
        return depths
    ages = metrics.measure(AGE, counted_queues(context, depths))
    return [
        replace(depth, oldest_age_seconds=ages.figures.get(depth.queue), error=depth.error or ages.error)
        for depth in depths
    ]


def counted_queues(context: BrokerContext, depths: Sequence[QueueDepth]) -> list[Queue]:
    """The queues that SQS could count."""
    return [context.queues.find(depth.queue) for depth in depths if depth.visible is not None]


def _depth(context: BrokerContext, name: str) -> QueueDepth:
    try:
        queue = context.queues.find(name)
        visible, in_flight, delayed = counts(queue, VISIBLE, HIDDEN, DELAYED)
    except SQSError as error:
        return QueueDepth(name, error=error)
    depth = QueueDepth(name, visible, in_flight, delayed)
    try:
        letters = dead_letter_queue(context, queue)
        return depth if letters is None else replace(depth, dead_letters=count(letters, VISIBLE))
    except SQSError as error:
        return replace(depth, error=error)
