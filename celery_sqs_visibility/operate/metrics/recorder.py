"""Counters of a worker's events, updated in each event's thread; and gauges of how busy the worker is."""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.threads import snapshot
from celery_sqs_visibility.events import DeliveryFacts, Event, subscribe
from celery_sqs_visibility.operate.figures import usd_of
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Labels, Series
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: The label for tasks that the worker does not have, because anybody may send any name.
UNKNOWN_TASK: Final = "unknown"

#: The label for queues that the worker does not consume, unless they belong to remote control.
OTHER_QUEUE: Final = "other"

#: For how many hidden messages the worker remembers when their retry is due.
MAX_DUE: Final = 10_000


class Recorder:
    """Counts the events of this process from `start` to `stop`.

    Args:
        tasks: the names that may become labels.
        queues: returns the queues that the worker consumes now: Celery's names by SQS's names.
        others: labels of remote control's queues, by the beginnings of their names.
    """

    def __init__(
        self,
        series: Series,
        tasks: Collection[str],
        queues: Callable[[], Mapping[str, str]],
        clock: Clock = SYSTEM_CLOCK,
        others: Mapping[str, str] | None = None,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._others = others or {}
        self._queues = queues
        self._names = queues()
        self._last_receive = dict.fromkeys(self._names.values(), clock.wall())
        self._lock = threading.Lock()  # guards _hidden and _due
        # Heaps of the monotonic instants at which messages come back, by queue and cause.
        self._hidden: defaultdict[Labels, list[float]] = defaultdict(list)
        self._due: dict[str, float] = {}  # the monotonic instants of retries, by message id
        self._ends: list[Callable[[], None]] = []
        self._count = {metric: counter.add for metric, counter in series.counters.items()}
        self._observe = {metric: histogram.observe for metric, histogram in series.histograms.items()}
        series.gauges[names.HIDDEN] = self._not_yet_back
        series.gauges[names.LAST_RECEIVE] = self._last_receives

    def start(self, only: type[Event] = Event) -> None:
        """Listen to the events of that kind. Idempotent."""
        if self._ends:
            return
        heard: dict[type[Event], Callable[[Any], None]] = {
            events.Started: self._started,
            events.Extended: lambda event: self._count[names.EXTENSIONS]((event.delivery.queue,)),
            events.Lost: lambda event: self._count[names.LOST]((event.delivery.queue,)),
            events.Hidden: self._failed_hidden,
            events.Parked: lambda event: self._hide(event, event.cause),
            events.Renewed: lambda event: self._hide(event, event.cause),
            events.Released: lambda event: self._hide(event, "released"),
            events.DeadLettered: lambda event: self._count[names.DEAD_LETTERED](self._labels(event.delivery)),
            events.EventsDropped: lambda event: self._count[names.EVENTS_DROPPED]((), event.count),
            events.SQSRequest: self._requested,
            events.ReplyDropped: lambda _: self._count[names.REPLIES_DROPPED](()),
            events.ReceiveEnded: self._receive_ended,
            events.ExtensionEnded: lambda event: self._observe[names.HEARTBEAT_LAG](
                (event.queue,), event.late
            ),
            events.DeliveryEnded: self._delivery_ended,
            events.SettlementEnded: lambda event: self._observe[names.SETTLE_TIME](
                (event.delivery.queue,), event.seconds
            ),
        }
        self._begin_at_zero()
        self._ends = [subscribe(listener, kind) for kind, listener in heard.items() if issubclass(kind, only)]

    def _begin_at_zero(self) -> None:
        """Create the counters at zero: a Prometheus query does not see the first step of a new series."""
        for queue in self._names.values():
            self._count[names.LOST]((queue,), 0)
            for task in (*self._tasks, UNKNOWN_TASK):
                if not task.startswith("celery."):
                    self._count[names.DEAD_LETTERED]((task, queue), 0)

    def stop(self) -> None:
        """Stop listening. Idempotent."""
        while self._ends:
            self._ends.pop()()

    def _labels(self, facts: DeliveryFacts) -> Labels:
        """The labels of a delivery's task and queue."""
        return (facts.task if facts.task and facts.task in self._tasks else UNKNOWN_TASK), facts.queue

    def _queue(self, sqs_name: str) -> str:
        if sqs_name not in self._names:
            for beginning, label in self._others.items():
                if sqs_name.startswith(beginning):
                    return label
            self._names = self._queues()
            self._begin_at_zero()
        return self._names.get(sqs_name, OTHER_QUEUE)

    def _started(self, event: events.Started) -> None:
        facts = event.delivery
        self._count[names.ATTEMPTS](self._labels(facts))
        if (lateness := self._lateness(facts)) is not None:
            kind, late = lateness
            self._observe[names.START_LATENESS]((facts.queue, kind), max(0.0, late))

    def _lateness(self, facts: DeliveryFacts) -> tuple[str, float] | None:
        """The kind of a run, and the seconds by which it began late; `None` if unknown."""
        with self._lock:
            due = self._due.pop(facts.message_id, None)
        if due is not None:
            return "retry", self._clock.monotonic() - due
        published_again = (facts.attempt or 1) > 1  # by Celery's own `retry`
        kind = "retry" if published_again else "first" if facts.eta is None else "eta"
        wanted = facts.eta or (facts.sent if facts.receive_count == 1 else 0)
        return (kind, self._clock.wall() - wanted) if wanted else None

    def _requested(self, event: events.SQSRequest) -> None:
        queue = self._queue(event.queue)
        self._observe[names.REQUESTS]((event.action, queue, event.outcome), event.seconds)
        if event.queue:  # otherwise the request was to S3
            self._count[names.COST]((queue,), usd_of(1, event.queue))

    def _receive_ended(self, event: events.ReceiveEnded) -> None:
        self._last_receive[event.queue] = self._clock.wall()
        full = event.messages >= event.asked
        self._count[names.RECEIVED]((event.queue,), event.messages)
        outcome = "empty" if not event.messages else "full" if full else "partial"
        self._count[names.RECEIVES]((event.queue, outcome))

    def _delivery_ended(self, event: events.DeliveryEnded) -> None:
        facts = event.delivery
        labels = *self._labels(facts), event.outcome
        self._count[names.TASKS](labels)
        self._observe[names.HELD_TIME]((facts.queue,), event.held)
        if event.ran is not None:
            self._observe[names.RUNS](labels, event.ran)

    def _failed_hidden(self, event: events.Hidden) -> None:
        self._hide(event, "kept" if event.kept else "retry")
        if not event.kept:
            with self._lock:
                self._due[event.delivery.message_id] = self._clock.monotonic() + event.seconds
                while len(self._due) > MAX_DUE:
                    del self._due[next(iter(self._due))]

    def _hide(
        self, event: events.Hidden | events.Parked | events.Renewed | events.Released, cause: str
    ) -> None:
        now = self._clock.monotonic()
        with self._lock:
            waiting = self._hidden[event.delivery.queue, cause]
            heapq.heappush(waiting, now + event.seconds)
            _drop_past(waiting, now)

    def _last_receives(self) -> list[tuple[Labels, float]]:
        known = list(self._last_receive.items())
        consumed = self._queues().values()
        return [((queue,), at) for queue, at in known if queue in consumed]

    def _not_yet_back(self) -> list[tuple[Labels, float]]:
        now = self._clock.monotonic()
        with self._lock:
            for waiting in self._hidden.values():
                _drop_past(waiting, now)
            return [(labels, len(waiting)) for labels, waiting in self._hidden.items()]


def _drop_past(instants: list[float], now: float) -> None:
    while instants and instants[0] <= now:
        heapq.heappop(instants)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The numbers of a worker's slots, of running tasks, and of held messages."""

    slots: int
    busy: int
    held: int


def worker_state(context: BrokerContext) -> WorkerState:
    """The state of the worker of this process."""
    consumers = snapshot(context.receiving.worker_queue_consumers)
    held = [delivery for consumer in consumers for delivery in consumer.held()]
    early = sum(capacity.runs for capacity in {each.capacity for each in consumers})
    busy = early + sum(delivery.started for delivery in held)
    return WorkerState(context.receiving.slots().number if context.receiving.slots else 0, busy, len(held))


def of_queues(context: BrokerContext, tell: Callable[[str], float]) -> list[tuple[Labels, float]]:
    """The values of `tell` for each queue that the worker consumes."""
    queues = {
        queue
        for consumer in snapshot(context.receiving.worker_queue_consumers)
        for queue in consumer.consumed()
    }
    return [((queue,), tell(queue)) for queue in sorted(queues)]


def show_state(series: Series, context: BrokerContext) -> None:
    """Add the worker's state to the series, as gauges."""
    series.gauges[names.SLOTS] = lambda: [((), worker_state(context).slots)]
    series.gauges[names.SLOTS_BUSY] = lambda: [((), worker_state(context).busy)]
    series.gauges[names.HELD] = lambda: [((), worker_state(context).held)]
    pauses, turns = context.receiving.pauses, context.receiving.turns and context.receiving.turns.turns
    series.gauges[names.PAUSED] = lambda: of_queues(context, lambda queue: pauses.get(queue) is not None)
    receiving = context.receiving  # a bootstep sets its brakes later
    series.gauges[names.BRAKE_ON] = lambda: [((one.brake,), one.stage == "on") for one in receiving.brakes()]
    series.gauges[names.BRAKE_WAITING] = lambda: [((one.brake,), one.waiting) for one in receiving.brakes()]
    options = context.options
    series.gauges[names.INTERVAL_MAX] = lambda: of_queues(
        context, lambda queue: options.for_queue(queue).polling_interval_max
    )
    series.gauges[names.FULL] = lambda: of_queues(context, lambda queue: bool(turns and turns.is_full(queue)))
