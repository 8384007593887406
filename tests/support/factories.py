"""Builders that several test modules share: what they make is in their names."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import build_tracer
from kombu.message import Message
from kombu.utils.json import dumps
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import HIDDEN, Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.capacity import Capacity, Waiter
from celery_sqs_visibility.core.delivery import Delivery, State
from celery_sqs_visibility.core.settlements import Forward, Hide, Lapse, Purpose, Why
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages, PayloadStore
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.content import DecodedMessage
from celery_sqs_visibility.events import DeliveryFacts
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.options import Options, QueueOptions
from celery_sqs_visibility.policy.prefetch import PREFETCH_SECONDS, Slots
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.task.context import DeliveryContext
from celery_sqs_visibility.task.retries import VisibilityRetry
from celery_sqs_visibility.worker.bound_tasks import bind_request_class
from celery_sqs_visibility.worker.worker_context import WorkerContext

# --- a run of a task, without a worker ---


def noop():
    """A task."""


def sqs_facts(
    receive_count=1, max_receive_count=None, queue="celery", horizon_left=VISIBILITY_HORIZON_SECONDS
):
    """`self.request.sqs`, as `DeliveryRequest` describes a delivery."""
    return {
        "queue": queue,
        "receive_count": receive_count,
        "max_receive_count": max_receive_count,
        "horizon": SYSTEM_CLOCK.monotonic() + horizon_left,
    }


def delivery_request(retries=0, **request):
    """What the worker's main process gives a pool's child with a task; `sqs=None`: from another broker."""
    sqs = request.pop("sqs", sqs_facts(receive_count=retries + 1))
    url = f"https://sqs.test/{sqs.get('queue')}" if sqs else None
    info = {"redelivered": retries > 0, "sqs_queue": url}
    return {
        "id": uuid.uuid4().hex,
        "retries": retries,
        "sqs": sqs,
        "delivery_info": info,
        "properties": {"delivery_info": info},
        "hostname": "here",
        **request,
    }


@contextmanager
def running(task, **request):
    """Inside, `task` runs for a message from SQS."""
    context = DeliveryContext(delivery_request(**request), args=(), kwargs={}, called_directly=False)
    task.push_request(**vars(context))
    try:
        yield task.request
    finally:
        task.pop_request()


def trace(task, args=(), **request):
    """Run a task as a pool's child does; Celery's (retval, info, runtime, retstr)."""
    if task.__trace__ is None:
        task.__trace__ = build_tracer(task.name, task, app=task.app)
    request = delivery_request(**request)
    return task.__trace__(request["id"], args, {}, request)


def outcome(task, **request):
    """How a run of the task ends: its state, and the exception that says so."""
    info = trace(task, **request).info
    return (info.state, info.retval) if info else (states.SUCCESS, None)


def hidden_for(task, **request):
    """Seconds that the message of a run is hidden."""
    state, retry = outcome(task, **request)
    assert (state, type(retry)) == (states.RETRY, VisibilityRetry)
    return retry.delay


# Receiving.


def every_queue(visibility_timeout=120, heartbeat_interval=0.0, polling_interval_max=0.0, **options):
    """The options of a queue, whatever its name: as `Held` asks for them."""
    options = QueueOptions(
        visibility_timeout=visibility_timeout,
        heartbeat_interval=heartbeat_interval,
        polling_interval_max=polling_interval_max,
        **options,
    )
    return lambda _name: options


def sqs_queue(name="q", sqs=None):
    """A queue of a fake SQS; FIFO if its name says so."""
    sqs = sqs or FakeSQS(FakeClock())
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    return Queue(name, sqs.create_queue(name, attributes, {}), sqs)


class FilledCapacity(Capacity):
    """Capacity on a test's clock, of messages that come, run and go without a consumer."""

    def __init__(self, prefetch_seconds=0.0, clock=None, slots=None, turns=None):
        super().__init__(prefetch_seconds, slots, turns)
        self.clock = clock or FakeClock()
        self.deliveries = []

    @property
    def now(self):
        return self.clock.monotonic()

    def hold(self, messages=1, *, queue="q", fifo=False):
        """That many messages of the queue are held from now on; their deliveries."""
        in_queue = SimpleNamespace(name=queue, fifo=fifo)
        held = [CountedDelivery(in_queue, SimpleNamespace(capacity=self)) for _ in range(messages)]
        for delivery in held:
            self.count(delivery, 1)
        self.deliveries += held
        return held

    def release(self, delivery=None, *, queue=None, began=None, early=False):
        """One is settled, of that queue or any, whose run began then; its delivery."""
        if delivery is None:
            delivery = next(each for each in self.deliveries if queue in (None, each.queue.name))
        self.deliveries.remove(delivery)
        delivery.began, delivery.acknowledged_early = began, early
        self.free(delivery, self.now)
        self.serve(self.now, delivery.queue.name)
        return delivery

    def reserve(self, queue, *, fifo=False):
        """What a poll may ask for just now; `None` if it has to wait."""
        waiter = self.wait(queue, fifo=fifo)
        if waiter.reservation is None:
            self.remove_waiter(waiter, self.now)
        return waiter.reservation

    def wait(self, queue, *, fifo=False):
        """The queue waits for capacity."""
        waiter = Waiter(queue, fifo, lambda: None)
        self.add_waiter(waiter, self.now)
        return waiter

    def look(self, now, held=None):
        super().look(now, self.deliveries if held is None else held)

    def received(self, reservation, messages):
        """The poll has brought these, which are held; their deliveries."""
        self.answered(reservation, messages, self.now)
        held = self.hold(messages, queue=reservation.queue, fifo=reservation.fifo)
        self.taken(reservation, self.now)
        return held


class CountedDelivery:
    """What counts for capacity of one."""

    began = wait = None
    acknowledged_early, has_place = False, True

    def __init__(self, queue, consumer):
        self.queue, self.consumer, self.message_key = queue, consumer, id(self)


def capacity(prefetch_count=10, queues=1, *, slots=None, clock=None, prefetch_seconds=0.0):
    """The capacity of a worker that consumes so many queues; of a pool, or as kombu has it."""
    pool = None if slots is None else lambda: Slots(slots, prefetch_count)
    made = FilledCapacity(prefetch_seconds, clock, pool)
    made.prefetch_count = prefetch_count
    for number in range(queues):
        made.add_queue(f"q{number}")
    return made


TIMEOUT = 120  # the visibility timeout of all deliveries
EVERYTHING = ReceiveOptions(TIMEOUT, ("All",), ("All",))
CHANGES = "ChangeMessageVisibilityBatch"
DELETES = "DeleteMessageBatch"

# Queues and messages


class BusySQS(FakeSQS):
    """Something may happen while it changes a visibility."""

    meanwhile = staticmethod(lambda: None)

    def __init__(self, *arguments, **switches):
        super().__init__(*arguments, **switches)
        self.urgent = []  # whether each change was

    def change_visibility(self, queue_url, changes, *, urgent=False):
        self.urgent.append(urgent)
        result = super().change_visibility(queue_url, changes)
        self.meanwhile()
        return result


class CrowdedSQS(BusySQS):
    """Every queue has that many messages in flight, besides those that it hands out."""

    in_flight = 0

    def queue_attributes(self, queue_url, names):
        found = super().queue_attributes(queue_url, names)
        more = {HIDDEN: str(int(found[HIDDEN]) + self.in_flight)} if HIDDEN in found else {}
        return {**found, **more}


def queue(sqs, name: str = "q", *, letters: Queue | None = None, most: int = 3, **attributes: str) -> Queue:
    """A queue of that fake; with `letters`, its dead-letter queue, after `most` receives."""
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if letters is not None:
        arn = sqs.queue_attributes(letters.url, ["QueueArn"])["QueueArn"]
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": most})
    return Queue(name, sqs.create_queue(name, attributes, {}), sqs)


def send(queue: Queue, *bodies: str, group: str | None = None) -> None:
    """Put messages into it; in a FIFO queue into that group, or each into a group of its own."""
    for number, body in enumerate(bodies):
        unique = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{body}-{number}"))  # a body may have spaces
        fifo = {"group_id": group or str(number), "deduplication_id": unique} if queue.fifo else {}
        queue.sqs.send(queue.url, OutgoingMessage(body, **fifo))


def counts(queue: Queue) -> tuple[int, int]:
    """Messages visible and hidden."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    visible, hidden = map(int, queue.sqs.queue_attributes(queue.url, names).values())
    return visible, hidden


def left(queue: Queue) -> int:
    """Messages in the queue."""
    return sum(counts(queue))


def show(queue: Queue) -> None:
    """Its hidden messages are visible, as a standard queue may deliver one that is hidden once more."""
    stored = queue.sqs.queues[queue.url]
    for message in stored.messages:
        if message.receive_count:
            message.visible_at = 0.0
            stored._time(message)


def requests(sqs: FakeSQS, action: str) -> list[dict[str, Any]]:
    """The arguments of the requests of that action."""
    return [arguments for name, arguments in sqs.calls if name == action]


def entries(sqs: FakeSQS, action: str) -> list[list[Any]]:
    """The entries of the batch requests of that action: receipt handles, or those with seconds."""
    return [arguments["handles" if action == DELETES else "changes"] for arguments in requests(sqs, action)]


# Deliveries


def delivery(
    queue: Queue,
    holder: Any = None,
    *,
    handle: str = "h1",
    now: float = 1000.0,
    timeout: int = TIMEOUT,
    **facts,
) -> Delivery:
    """One that was received at that monotonic instant; `facts` are those of `DeliveryFacts`."""
    known = {"message_id": "m1", "receive_count": 1, "first_received": 0.0, **facts}
    horizon = now + VISIBILITY_HORIZON_SECONDS
    return Delivery(queue, handle, DeliveryFacts(queue.name, **known), horizon, now + timeout, holder)


def received(
    queue: Queue, count: int, clock: FakeClock, *, timeout: int = TIMEOUT, **facts
) -> list[Delivery]:
    """Deliveries of messages that are sent to the queue, and received from it."""
    send(queue, *["task"] * count)
    options = ReceiveOptions(timeout)
    return [
        delivery(
            queue,
            handle=message["ReceiptHandle"],
            now=clock.monotonic(),
            timeout=timeout,
            message_id=message["MessageId"],
            **facts,
        )
        for _ in range(0, count, 10)
        for message in queue.sqs.receive(queue.url, min(count, 10), 0, options)
    ]


# Settlements

PARKED, LAPSE, HIDDEN_LETTER = Hide(7, Why.PARKED), Lapse(), Hide(9)


def renewal(copy="copy", otherwise=PARKED, **fields):
    """A copy goes on waiting."""
    return Forward(Purpose.RENEWAL, (OutgoingMessage(copy, **fields),), lambda _error: otherwise)


def split(messages, remainder=lambda _indices: None, otherwise=LAPSE):
    """The records of an event go on as these messages."""
    return Forward(Purpose.RECORDS, messages, lambda _error: otherwise, remainder)


def letter(body="body", otherwise=HIDDEN_LETTER, **fields):
    """A dead letter."""
    copy = OutgoingMessage(body, **fields)
    return Forward(Purpose.DEAD_LETTER, (copy,), lambda _error: otherwise, reason="broken")


# Consumers


def open_by_handle(_queue: Queue, message: Any) -> DecodedMessage:
    """A payload that says which delivery it is."""
    return DecodedMessage({"handle": message["ReceiptHandle"], "body": message["Body"]})


def queue_consumer(
    clock,
    *,
    buffer=None,
    redrive=None,
    holder=None,
    open_message=open_by_handle,
    payloads=None,
    slots=None,
    turns=None,
    pauses=None,
    consumers=tuple,
    leases=None,
    pump=None,
    capacity=None,
    settle_window=0.0,
    prefetch_seconds=PREFETCH_SECONDS,
    **options,
):
    """A consumer that may hold ten messages; `options` are transport options, unless it has a `holder`."""
    parsed = Options.parse({"visibility_timeout": TIMEOUT, **options})
    outgoing = OutgoingMessages(PayloadStore(payloads)) if payloads else OutgoingMessages()
    made = QueueConsumer(
        holder
        or DeliveryHolder(parsed, redrive or RedriveBook(), pump or Pump(clock), outgoing, settle_window),
        EVERYTHING,
        open_message,
        Buffer() if buffer is None else buffer,
        capacity or Capacity(prefetch_seconds, slots, turns and turns.turns),
        leases,
        turns,
        pauses,
        consumers,
    )
    made.set_prefetch_count(10)
    return made


def unstarted(consumer):
    """What it holds and Celery has not begun."""
    return [delivery for delivery in consumer.held() if delivery.state is State.HELD]


def by_receipt(consumer, handle):
    """The delivery whose latest receipt handle that is, held or looked up."""
    held = (delivery for delivery in consumer.held() if delivery.handle == handle)
    return next(held, None) or consumer.holder.get(handle)


# A worker's requests, without a worker

PID = 4711  # of the pool's process that runs a request
AFTER_AN_ERROR = Hide(77)


class FakeHolder:
    """Notes how its deliveries are settled, and settles each once."""

    def __init__(
        self, *, max_receive_count: int | None = None, given_up: bool = False, kept: bool = False, **options
    ) -> None:
        policy = None if max_receive_count is None else SimpleNamespace(max_receive_count=max_receive_count)
        self.options = Options.parse(options)
        self.redrive = SimpleNamespace(peek=lambda _queue: policy)
        self.rejection = SimpleNamespace(
            after_an_error=lambda _delivery: AFTER_AN_ERROR,
            gave_up=lambda _delivery: given_up,
            kept=lambda _delivery: kept,
            give_up=lambda delivery, reason, _body, _on_exhausted, **attributes: self.settle(
                delivery, (reason, attributes)
            ),
        )
        self.settled: list[Any] = []
        self.calls: list[str] = []
        self.may_run = True

    def settle(self, delivery, settlement, receipt=None):
        if receipt not in {None, delivery.handle}:
            return False
        self.settled.append(settlement)
        return len(self.settled) == 1

    def start(self, delivery):
        self.calls.append("start")
        delivery.began = 1.0 if self.may_run else None
        return self.may_run

    def dispatch(self, delivery):
        self.calls.append("dispatch")
        return self.may_run

    def run_ended(self, delivery):
        self.calls.append("ran")


class FakePool:
    """A pool that can end runs, and notes whose."""

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def terminate_job(self, pid, signal):
        self.killed.append(pid)


class ReceivedMessage(Message):
    """A kombu message with a delivery, as a channel's."""

    delivery: Delivery
    is_broadcast = False

    def give_up(self, reason, when_exhausted=None, **attributes):
        self.delivery.give_up(reason, lambda: "", when_exhausted, **attributes)


def held_delivery(holder: FakeHolder, **facts) -> Delivery:
    """A delivery that is received just now; `facts` are those of `DeliveryFacts`."""
    sqs = FakeSQS()
    queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
    known = {"message_id": "id", "receive_count": 1, "first_received": 0.0, **facts}
    now = SYSTEM_CLOCK.monotonic()
    horizon = now + VISIBILITY_HORIZON_SECONDS
    return Delivery(queue, "handle", DeliveryFacts("q", **known), horizon, now + 120, holder)


def request(task, delivery: Delivery, *, processes: bool = True, chord=None, **headers) -> Any:
    """A worker's request for a message of that task."""
    sent = task.app.amqp.as_task_v2("task-id", task.name, chord=chord, ignore_result=bool(task.ignore_result))
    message = ReceivedMessage(
        dumps(sent.body),
        headers={**sent.headers, **headers},
        properties={**sent.properties, "delivery_tag": "tag"},
        content_type="application/json",
        content_encoding="utf-8",
    )
    message.delivery = delivery
    worker = WorkerContext(FakePool(), has_processes=processes)
    worker.when_lost = delivery.holder.options.when_lost
    bind_request_class(task, worker)
    return task.Request(message, app=task.app, task=task)


def exc_info(exc: BaseException) -> ExceptionInfo:
    """As a run that raised it leaves."""
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()


def broken(record: logging.LogRecord) -> bool:
    """A user's filter, with a bug: `logging` lets through what it raises."""
    raise RuntimeError("a filter's bug")


@contextmanager
def a_filter_that_raises() -> Iterator[None]:
    """On every logger of the package."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("celery_sqs_visibility")]
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(broken)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(broken)
