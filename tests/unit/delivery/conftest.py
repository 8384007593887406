"""A consumer with a fake SQS, as most tests of a delivery's way need it."""

import math
import threading

import pytest
from support import factories
from support.clock import FakeClock
from support.factories import TIMEOUT, BusySQS
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.settlements import Delete, Lapse
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, Records
from celery_sqs_visibility.delivery.receive.decoder import UnreadableError
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.turn_line import TurnBuffers
from celery_sqs_visibility.events import subscribe


class Events:
    """What happened so far, and what happens next; bounded."""

    def __init__(self):
        self.seen = []
        self.changed = threading.Condition()

    def __call__(self, event):
        with self.changed:
            self.seen.append(event)
            self.changed.notify_all()

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]

    def wait(self, kind, count=1):
        with self.changed:
            came = self.changed.wait_for(lambda: len(self.of(kind)) >= count, SOON)
            assert came, f"no {kind}: {self.seen}"
            return self.of(kind)


class World:
    """A consumer that polls at once, and then sleeps until it expects something."""

    def __init__(self, clock=None, sqs=None, slots=None, turns=None, pump=Pump, **options):
        self.clock = clock or FakeClock()
        self.sqs = sqs or BusySQS(self.clock)
        self.handed = []
        self.options = {"polling_interval": 3600, "prefetch_seconds": 0, **options}
        self.slots, self.pauses = slots, Pauses(self.clock)
        self.pump = pump(self.clock)
        self.turns = None if turns is None else TurnBuffers(turns, self.pump.lock)
        self.buffer = Buffer()
        self.consumers = []
        self.consumer = self.new_consumer()

    def new_consumer(self):
        """Another in the same process, as after a lost connection."""
        consumer = factories.queue_consumer(
            self.clock,
            buffer=self.buffer,
            holder=self.consumers[0].holder if self.consumers else None,
            open_message=self.open_message,
            slots=self.slots,
            turns=self.turns,
            pauses=self.pauses,
            pump=self.pump,
            **self.options,
        )
        if isinstance(self.clock, FakeClock):
            # They would find a clock that stands still, and jumps. Tests themselves extend what is held.
            consumer._supervisor.lane.start = consumer.holder._heartbeat.lane.start = lambda: None
        self.consumers.append(consumer)
        return consumer

    def open_message(self, queue, message):
        payload = factories.open_by_handle(queue, message).payload
        match message["Body"].split(":"):
            case ["unreadable"]:
                raise UnreadableError("nobody can read it")
            case ["bug"]:
                raise ZeroDivisionError
            case ["lack"]:
                raise MemoryError
            case ["later bug"]:
                return DecodedMessage({}, eta="not a number")
            case ["eta", seconds]:
                return DecodedMessage(payload, eta=self.clock.wall() + float(seconds))
            case ["test event"]:
                return Delete()
            case ["records", *records]:
                return Records(tuple(map(OutgoingMessage, records)), message["Body"])
            case _:
                return DecodedMessage(payload)

    def queue(self, name="q", **settings):
        return factories.queue(self.sqs, name, **settings)

    def consume(self, queue, *bodies, on_message=None):
        factories.send(queue, *bodies)
        self.consumer.consume(queue, self.on_message(on_message or self.handed.append))

    @staticmethod
    def on_message(take_payload):
        return lambda payload, _delivery: take_payload(payload)

    def buffered(self, queue, *bodies, on_message=None):
        """Have these messages in the buffer, and the receiver asleep."""
        self.consume(queue, *bodies, on_message=on_message)
        assert self.buffer.wait(SOON)
        wait_until(lambda: self.next_poll(queue) > self.clock.monotonic(), SOON, "the receiver to sleep")

    def deliveries(self, queue, *bodies):
        """Consume these messages, and hand them to Celery."""
        self.buffered(queue, *bodies)
        self.hand_over()
        return [self.delivery(payload) for payload in self.handed]

    def hand_over(self):
        return self.buffer.dispatch(self.clock)

    def bodies(self):
        return [payload["body"] for payload in self.handed]

    def next_poll(self, queue):
        """When its receiver polls next, which sleeps; in the past while it polls."""
        receiver = self.consumer._receivers.get(queue.name)
        with self.pump.lock:
            return -math.inf if receiver.in_flight else receiver._polls.schedule.next_poll()

    def delivery(self, payload):
        """As kombu's message looks it up."""
        return self.consumer.holder.get(payload["handle"])

    def visible(self, queue):
        return [message["Body"] for message in self.sqs.receive(queue.url, 10, 0, factories.EVERYTHING)]

    def held(self, consumer=None):
        """How many messages are held, on which holder and capacity agree."""
        consumer = consumer or self.consumer
        assert consumer.capacity.held == len(consumer.held())
        return consumer.capacity.held

    def beat(self):
        """As a heartbeat's thread does it when it is time."""
        work_off(self.consumer.holder._heartbeat.lane)

    def extend(self):
        self.clock.advance(TIMEOUT * 2 / 3)
        self.beat()

    def entries(self, action):
        """Of the batches of that action, in order."""
        return [entry for batch in factories.entries(self.sqs, action) for entry in batch]

    def come_back(self, queue, consumer=None, *, early=False):
        """The messages' visibility ran out, and the receiver, whose part the test plays, polls again.

        Or a standard queue delivers them once more, `early`.
        """
        consumer = consumer or self.consumer
        if early:
            factories.show(queue)
        else:
            self.clock.advance(TIMEOUT)
        now = self.clock.monotonic()
        messages = self.sqs.receive(queue.url, 10, 0, factories.EVERYTHING)
        consumer._arrived(queue, messages, now, now)
        return [factories.by_receipt(consumer, message["ReceiptHandle"]) for message in messages]

    def close(self):
        for consumer in self.consumers:
            for delivery in consumer.held():
                delivery.settle(Lapse())
            consumer.close()
        self.buffer.close()


@pytest.fixture
def make():
    worlds = []

    def make(**options):
        worlds.append(World(**options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make):
    return make()


@pytest.fixture
def queue(world):
    return world.queue()


@pytest.fixture
def dead_letters(world):
    return world.queue("dead_letters")


@pytest.fixture
def redriven(world, dead_letters):
    """A queue with a dead-letter queue, after three receives."""
    return world.queue("redriven", letters=dead_letters)


@pytest.fixture
def events():
    events = Events()
    end = subscribe(events)
    yield events
    end()
