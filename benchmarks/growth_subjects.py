"""What may grow: each subject does its work at one size, on one thread, by a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle

import cost_run
import cost_worlds as worlds
import growth_control as control
import growth_keys as keys
import growth_monitors as monitors
from cost_kinds import ORDER, Kind
from cost_run import MINUTE_SECONDS, SLOTS, TOGETHER, make_app, queue_consumers, supervise
from growth_consumer import Consumer
from support.lanes import work_off

from celery_sqs_visibility import publish_batch
from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.core.pending import LINGER_SECONDS
from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.delivery.payloads.removals import Removals
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS
from celery_sqs_visibility.policy.prefetch import IDLE_QUEUE_PERIOD_SECONDS

MESSAGES = 1000  # of which the cost of one is the average
HOUR_MINUTES = 60
IN_GROUPS = 10_000  # messages of a block, in any number of groups
RETRY_SECONDS = 60
TASK_SECONDS = 600
LONG_TIMEOUT_SECONDS = 7200
FIFO = ".fifo"


# A worker


class Stock(cost_run.Supply):
    """A thousand messages that are sent again and again, under a new id each time."""

    groups = 0  # of a FIFO queue

    def __init__(self, app, queues, sqs):
        super().__init__(app, queues, MESSAGES, sqs)
        self._numbers = count()
        sqs.calls.clear()
        self._stock = {url: cycle(messages) for url, messages in self._stock.items()}

    def send(self, messages):
        """To all queues together; it is no request of the worker's."""
        for number in range(messages):
            url = [*self._stock][number % len(self._stock)]
            message = next(self._stock[url])
            if self.groups:
                group, unique = f"group{number % self.groups}", str(next(self._numbers))
                message = replace(message, group_id=group, deduplication_id=unique)
            self._sqs.queues[url].send(message, self._sqs._now())

    def work(self, consumer):
        """What the threads do: settle what is due, then each polls, if it has capacity."""
        worlds.advance(worlds.LATENCY_SECONDS)
        (consumer,) = queue_consumers(consumer)
        for threads in consumer._lanes:
            while threads.send_next():
                worlds.advance(worlds.LATENCY_SECONDS)
        for receiver in consumer._receivers.all():
            if self._sqs.queues[receiver.queue.url].messages:
                receiver.lane.send_next()

    def idle(self, consumer, seconds):
        """Long polls of all queues at once, and the supervisor's checks meanwhile."""
        (consumer,) = queue_consumers(consumer)
        receivers = consumer._receivers.all()
        polling = 0

        def meanwhile(wait):
            """The poll of the last queue lasts while the others' wait for the same."""
            nonlocal polling
            polling += 1
            if polling < len(receivers):
                receivers[polling].lane.send_next()
            if not self._sqs.waited:
                self._sqs.waited = True
                supervise(consumer, wait)

        self._sqs.meanwhile = meanwhile
        until = worlds.Clock.monotonic() + seconds
        while worlds.Clock.monotonic() < until:
            polling, self._sqs.waited = 0, False
            before = worlds.Clock.monotonic()
            receivers[0].lane.send_next()
            if worlds.Clock.monotonic() == before:
                worlds.advance(CHECK_INTERVAL_SECONDS)
                consumer._supervisor.check(worlds.Clock.monotonic())


class Poll:
    """The event loop's wait for descriptors, where nobody else brings what it would wait for."""

    def __init__(self, poll):
        self._poll = poll
        self.seconds = 0.0  # that it would have waited

    def __call__(self, seconds):
        self.seconds += seconds
        return self._poll(0)


def worker(measure, turns, *, queues=1, kind="", slots=SLOTS, options=None):
    """Have a worker that Celery starts do that. Does not return."""
    names = tuple(f"queue{number}{kind}" for number in range(queues))
    app = make_app(Kind(queues=names, options=options or {}))
    app.conf.task_default_queue = names[0]
    stock = Stock(app, names, measure.sqs)

    def begin(consumer):
        consumer.hub.poller.poll = Poll(consumer.hub.poller.poll)
        return turns(consumer, stock)

    cost_run.run_worker(app, worlds.Processes, slots, begin, measure.end)


def consumed(consumer, stock, messages):
    """Turns in which that many of the messages that wait are run and deleted."""
    until = stock.left - messages
    while stock.left > until:
        stock.work(consumer)
        yield


def backlog(measure, size):
    """A message of a backlog of that size."""

    def turns(consumer, stock):
        stock.send(2 * MESSAGES + size)
        measure.prepare()
        yield from consumed(consumer, stock, MESSAGES)
        measure.start()
        yield from consumed(consumer, stock, MESSAGES)
        measure.stop()

    worker(measure, turns)


def after(measure, size):
    """A message after that number of messages."""

    def turns(consumer, stock):
        measure.prepare()
        for counted, many in enumerate((size, MESSAGES)):
            if counted:
                measure.start()
            for _ in range(0, many, TOGETHER):
                stock.send(TOGETHER)
                yield from consumed(consumer, stock, TOGETHER)
        measure.stop()

    worker(measure, turns)


def queues(measure, size, **options):
    """A message of a worker of that many queues, each of which has some."""

    def turns(consumer, stock):
        measure.prepare()
        for counted in range(2):
            stock.send(2 * MESSAGES)
            if counted:
                measure.start()
            yield from consumed(consumer, stock, MESSAGES)
        measure.stop()

    worker(measure, turns, queues=size, options=options)


def groups(measure, size):
    """A message of a FIFO queue in which that many groups have some."""

    def turns(consumer, stock):
        stock.groups = size
        stock.send(2 * MESSAGES + size)
        measure.prepare()
        yield from consumed(consumer, stock, MESSAGES)
        measure.start()
        yield from consumed(consumer, stock, MESSAGES)
        measure.stop()

    worker(measure, turns, kind=FIFO)


def idle_hours(measure, hours):
    """An hour without a message; all of them are counted."""

    def turns(consumer, stock):
        measure.prepare()
        measure.start()
        stock.idle(consumer, hours * HOUR_MINUTES * MINUTE_SECONDS)
        measure.stop()
        yield

    worker(measure, turns)


def idle(measure, minutes, number=1, **options):
    """A minute without a message, after so many of them."""

    def turns(consumer, stock):
        measure.prepare()
        stock.idle(consumer, minutes * MINUTE_SECONDS)
        measure.start()
        stock.idle(consumer, MINUTE_SECONDS)
        until = consumer.hub.poller.poll.seconds + MINUTE_SECONDS
        while consumer.hub.poller.poll.seconds < until:
            yield
        measure.stop()

    worker(measure, turns, queues=number, options=options)


def held(measure, size):
    """A message that runs, and whose extension is due; and the supervisor's checks for a second."""

    def turns(consumer, stock):
        (own,) = queue_consumers(consumer)
        measure.prepare()
        while len(own.held()) < size:
            stock.send(min(TOGETHER, size - len(own.held())))
            stock.work(consumer)
            yield
        worlds.advance(80)
        work_off(own.holder._heartbeat.lane)
        worlds.advance(80)
        measure.start()
        work_off(own.holder._heartbeat.lane)
        own._supervisor.check(worlds.Clock.monotonic())
        own._supervisor.check(worlds.Clock.monotonic())
        measure.stop()

    worlds.Processes.answers = False
    worker(measure, turns, slots=size)


# A consumer without a worker


def retries(measure, size):
    """A retry: hidden, expected, received again, deleted."""
    consumer = Consumer(measure)
    deliveries = consumer.receive(size)
    measure.prepare()
    measure.start()
    for delivery in deliveries:
        delivery.settle(Hide(RETRY_SECONDS))
    del deliveries, delivery
    consumer.settle()
    measure.weigh()
    (receiver,) = consumer.own._receivers.all()
    while measure.sqs.queues[consumer.queue.url].messages:
        worlds.advance(max(0.0, receiver._polls.schedule.next_poll() - worlds.Clock.monotonic()))
        receiver.replace_stuck(worlds.Clock.monotonic())
        consumer.take()
        for delivery in consumer.own.held():
            delivery.settle(Delete())
        consumer.settle()
    measure.stop()


def more_time(measure, size):
    """A run asks for more time, as all others do."""
    consumer = Consumer(measure)
    leases = []
    for delivery in consumer.receive(size):
        delivery.start()
        leases.append(delivery.lease)
    measure.prepare()
    measure.start()
    for lease in leases:
        lease.request(worlds.Clock.monotonic() + TASK_SECONDS)
    work_off(consumer.own.holder._heartbeat.lane)
    measure.stop()


def given_back(measure, size):
    """A message that a worker which ends gives back."""
    consumer = Consumer(measure)
    consumer.receive(size)
    measure.prepare()
    measure.start()
    consumer.own._take_buffered()
    consumer.own._give_back(consumer.own._unstarted(None))
    consumer.settle()
    measure.stop()


def unextended(measure, size):
    """A message that is held without a heartbeat: received, and deleted. All lapse at times of their own."""
    consumer = Consumer(measure, heartbeat_interval=0, visibility_timeout=LONG_TIMEOUT_SECONDS)
    measure.prepare()
    measure.start()
    deliveries = consumer.receive(size, 3 * TOGETHER * LONG_TIMEOUT_SECONDS / 4 / size)
    measure.weigh()
    for delivery in deliveries:
        consumer.own.holder._heartbeat.notice()
        delivery.settle(Delete())
    consumer.settle()
    measure.stop()


def removals(measure, size):
    """A payload of a deleted message is removed from S3, when all of them wait for that."""
    objects = FakeObjectStore()
    waiting = Removals(objects, Pump(worlds.Clock))
    measure.prepare()
    measure.start()
    for number in range(size):
        waiting.submit(str(number))
    measure.weigh()
    worlds.advance(RETRY_SECONDS)
    work_off(waiting.lane)
    measure.sqs.calls += objects.calls
    measure.stop()


def published(measure, size):
    """A message of a block of `publish_batch`, whose threads' part this thread does after each ten."""
    app = make_app(Kind())
    delay = app.tasks["noop"].delay
    for many in (TOGETHER, size):
        if many == size:
            measure.prepare()
            measure.start()
        with publish_batch(app) as batch:
            for number in range(many):
                delay(number)
                if number % TOGETHER == TOGETHER - 1:
                    batch._senders[-1].lane.send_next()
            if many == size:
                measure.weigh()
    measure.stop()


def published_in_groups(measure, size):
    """A message of a block for a FIFO queue, in that many groups: one of each group in a request."""
    app = make_app(Kind(queues=(f"queue{FIFO}",)))
    send = app.tasks["noop"].apply_async
    for many in (TOGETHER, IN_GROUPS):
        if many == IN_GROUPS:
            measure.prepare()
            measure.start()
        with publish_batch(app) as batch:
            for number in range(many):
                send([number], queue=f"queue{FIFO}", MessageGroupId=f"group{number % size}")
                while number % TOGETHER == TOGETHER - 1 and not batch._senders[-1].empty:
                    worlds.advance(LINGER_SECONDS)
                    batch._senders[-1].lane.send_next()
            if many == IN_GROUPS:
                measure.weigh()
    measure.stop()


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        title: what it is about, in the page.
        of: what the size is the number of.
        unit: that whose cost the figures are.
        work: does it.
        sizes: over two decades or more.
        units: how many are done; `None`: as many as the size says.
        grows: the power of the size with which the cost of a unit may grow: 0 not at all, 1 in proportion.
        most_requests: a bound that makes faster growth before it right; times that power of the size.
    """

    title: str
    of: str
    unit: str
    work: Callable
    sizes: tuple[int, ...]
    units: int | None = None
    grows: int = 0
    most_requests: int | None = None

    def units_of(self, size):
        return self.units or size


def idle_queues(measure, size, **options):
    idle(measure, 1, size, **options)


FEW = (10, 100, 1_000)
MANY = (*FEW, 10_000)
BACKLOGS = (*MANY[2:], 100_000, 1_000_000)
QUEUES = (1, 5, 20, 50)
MINUTES = (1, 60, 1440)
HOURS = (1, 6, 24)
GROUPS = (1, *MANY)
LISTENERS = (1, 5, 20, 50)
MESSAGE = "message"

SUBJECTS = {
    "backlog": Subject(
        "A message, by the backlog behind it",
        "backlog",
        MESSAGE,
        backlog,
        BACKLOGS,
        MESSAGES,
    ),
    "after": Subject(
        "A message, by how many came before it", "before it", MESSAGE, after, MANY[1:], MESSAGES
    ),
    "published": Subject(
        "A message that is published in one block", "in the block", MESSAGE, published, MANY[1:]
    ),
    "idle": Subject("An idle minute, by those before it", "minutes before", "minute", idle, MINUTES, 1),
    "idle hours": Subject("An idle hour, of a day", "hours", "hour", idle_hours, HOURS),
    "groups": Subject(
        "A message of a FIFO queue, by its groups", "groups", MESSAGE, groups, GROUPS, MESSAGES
    ),
    "published in groups": Subject(
        "A message that is published in one block to a FIFO queue, by the groups of the block",
        "groups",
        MESSAGE,
        published_in_groups,
        GROUPS[::2],
        IN_GROUPS,
    ),
    "queues": Subject("A message, by the worker's queues", "queues", MESSAGE, queues, QUEUES, MESSAGES, 1),
    "queues in order": Subject(
        "A message, by the worker's queues, with `queue_order`",
        "queues",
        MESSAGE,
        partial(queues, **ORDER),
        QUEUES,
        MESSAGES,
        1,
    ),
    "idle queues": Subject(
        "An idle minute, by the worker's queues",
        "queues",
        "minute",
        idle_queues,
        QUEUES,
        1,
        1,
        60 // IDLE_QUEUE_PERIOD_SECONDS,  # with more than may be polled at once, in rotation
    ),
    "idle queues in order": Subject(
        "An idle minute, by the worker's queues, with `queue_order`",
        "queues",
        "minute",
        partial(idle_queues, **ORDER),
        QUEUES,
        1,
        1,
    ),
    "held": Subject(
        "A message that runs: an extension, and a second's checks", "that run", MESSAGE, held, MANY
    ),
    "unextended": Subject("A message that is held without a heartbeat", "held", MESSAGE, unextended, MANY),
    "more time": Subject("A run that asks for more time, as all do", "runs", "request", more_time, MANY),
    "given back": Subject("A message that is given back at the end", "held", MESSAGE, given_back, MANY),
    "retries": Subject("A retry: hidden, received again, deleted", "hidden", "retry", retries, MANY[1:]),
    "removals": Subject(
        "A payload that is removed from S3, as all are", "payloads", "payload", removals, MANY
    ),
    "keys": Subject("A run that takes a key and finishes it", "runs", "run", keys.taken, MANY[1:]),
    "keys renewed": Subject(
        "A key that is renewed, as all are", "runs with a key", "key", keys.renewed, MANY
    ),
    "monitors": Subject(
        "An event of a worker, by the monitors that listen",
        "monitors",
        "event",
        monitors.events,
        LISTENERS,
        monitors.EVENTS,
        1,
    ),
    "command to all": Subject(
        "A command to all workers, a worker", "workers", "worker", control.command_all, FEW
    ),
    "command to one": Subject(
        "A command to one of the workers", "workers", "command", control.command_one, FEW, 1, 1
    ),
    "command to the gone": Subject(
        "A command to workers that are gone, a worker",
        "workers",
        "worker",
        control.command_an_old_list,
        FEW,
    ),
    "hour of a worker": Subject(
        "An hour of one of the workers", "workers", "hour", control.hour_of_a_worker, FEW, 1, 1
    ),
    "sweep": Subject("A queue that a sweep deletes", "stale queues", "queue", control.sweep, FEW),
}
