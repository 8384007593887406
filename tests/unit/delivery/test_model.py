"""What holds messages, as a model: any step at any time, any fault in any request; nothing is lost.

The steps are a consumer's own, on one thread and a clock that the machine turns: a request is taken, reaches
SQS, and its answer is concluded, and anything may happen in between. Users' listeners and logging filters
raise.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import factories
from support.clock import FakeClock
from support.factories import CHANGES, DELETES, EVERYTHING, TIMEOUT
from support.logs import a_filter_that_raises

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.settlements import DeadLetter, Delete, Hide, Lapse, Release
from celery_sqs_visibility.errors import (
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import Hidden, subscribe

SEND = "SendMessage"

#: What may become of a request, or of the entry at a position, with that error.
FAULTS = {
    "none": None,
    "the request is lost": None,
    "the answer is lost": None,
    "one is throttled": ThrottledError("slow down"),
    "one is refused": ReceiptHandleInvalidError("stale"),
}

#: Messages after which the worker may be told to end.
LATE = 15

#: Steps of a request, after it was taken.
REACHED, CONCLUDED = 2, 3
HOW_FAR = [3, 3, 3, 2, 1, 0]

#: How a run may end.
ENDS = {
    "success": lambda _: Delete(),
    "success, too": lambda _: Delete(),
    "failure": lambda _: Hide(7),
    "failure, for long": lambda _: Hide(400),
    "failure, at its own time": lambda _: Lapse(),
    "release": lambda _: Release(),
    "given up": lambda run: DeadLetter("broken", run.message_id, otherwise=Hide(9)),
    "given up, or released": lambda run: DeadLetter("broken", run.message_id, otherwise=Release()),
}

STEPS = []


def step(*, often=1.0, when=lambda _world: True, **choices):
    """What may happen `when` that holds, with one of the choices for each argument, so `often` by chance."""

    def decorate(method):
        STEPS.append(SimpleNamespace(name=method.__name__, often=often, when=when, choices=choices))
        strategies = {name: st.sampled_from(values) for name, values in choices.items()}
        return precondition(when)(rule(**strategies)(method))

    return decorate


REQUEST = {"steps": HOW_FAR, "fault": list(FAULTS)}
WHICH = range(100)
MILLISECONDS = range(1001)
POSITIONS = range(10)


class AnyCapacity:
    """Capacity for whatever comes; that it counts right is tested elsewhere."""

    def __getattr__(self, name):
        return lambda *_, **__: None


class Flight:
    """A request of batch threads, from its beginning to its conclusion."""

    def __init__(self, batch_threads, batch, since):
        self.batch_threads, self.batch, self.since = batch_threads, batch, since
        self.failed = None  # by position; `None` until it is known
        self.extends = hasattr(batch, "extensions")
        self.changes_visibility = self.extends or batch.origin.kind is Hide

    def jobs(self):
        """Pairs of a delivery and what is asked for it, seconds of an extension or a settlement."""
        if self.extends:
            return self.batch.extensions
        return [(one.delivery, one.settlement) for one in self.batch.settlements]


class Run:
    """A task that Celery has, and maybe runs."""

    def __init__(self, delivery, *, early):
        self.delivery = delivery
        self.message_id = delivery.facts.message_id
        self.begun = False
        self.early = delivery.acknowledged_early = early


class Holding(RuleBasedStateMachine):
    """One worker, others beside it, and SQS between them."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queue, self.graves = factories.queue(self.sqs), factories.queue(self.sqs, "graves")
        redrive = RedriveBook(lambda _: lambda: self.graves)
        redrive.get(self.queue, self.clock.monotonic())
        redrive.find_dead_letter_queue(self.queue)
        self.queue_consumer = factories.queue_consumer(self.clock, redrive=redrive, heartbeat_interval=40)
        self.queue_consumer.capacity = AnyCapacity()
        self.receiver = Mock(stopping=False, queue=self.queue)  # the machine polls in its place
        self.receiver.stop = lambda: setattr(self.receiver, "stopping", True)
        self.receiver.wait_for_polls.return_value = False
        self.queue_consumer._receivers.add(self.receiver, self.on_message)
        self.sent = set()
        self.runs = []
        self.handed_over = 0
        self.flights = []
        self.done = set()  # ids of messages of which a run succeeded, here or elsewhere
        self.finished_at = {}  # and when, here
        self.hidden_until = {}  # by handle, since SQS was last told to
        self.elsewhere = []  # handles that other workers have
        self.wrong = []  # what may not raise where it happens
        self.known = []  # every delivery there ever was
        self.events = []
        self.world = ExitStack()
        self.world.callback(subscribe(self.events.append))
        self.world.callback(subscribe(lambda event: 1 / 0))
        self.world.enter_context(a_filter_that_raises())

    @property
    def now(self):
        return self.clock.monotonic()

    @property
    def messages(self):
        """What SQS has, by id."""
        return {message.id: message for message in self.sqs._queues[self.queue.url].messages}

    # Messages come

    @step(count=range(1, 5), begun=[4, 2, 1, 0], transit=MILLISECONDS)
    def send(self, count=1, begun=0, transit=0):
        """That many messages, which arrive here; so many of what waits begins."""
        self.sent |= {self.sqs.send(self.queue.url, OutgoingMessage("task")) for _ in range(count)}
        self.receive(transit=transit)
        for _ in range(begun):
            self.begin()

    @step(count=range(1, 11), transit=MILLISECONDS, handed_over=[True, True, False])
    def receive(self, count=10, transit=0, handed_over=True):
        """A poll; after the shutdown has begun, one that was under way."""
        asked = self.now
        messages = self.sqs.receive(self.queue.url, count, 0, EVERYTHING)
        self.clock.advance(transit / 1000)
        self.queue_consumer._arrived(self.queue, messages, asked, self.now)
        handles = [message["ReceiptHandle"] for message in messages]
        self.known += filter(None, map(self.queue_consumer.ledger.get, handles))
        if handed_over:
            self.hand_over()

    @step()
    def hand_over(self):
        self.queue_consumer._buffer.dispatch(self.clock)

    def on_message(self, payload):
        delivery = self.queue_consumer.ledger.get(payload["handle"]).current
        if self.now <= self.finished_at.get(delivery.facts.message_id, -1e9) + TIMEOUT:
            self.wrong.append("what was finished here is run again")
        delivery.on_lost = self.on_lost
        self.handed_over += 1
        self.runs.append(Run(delivery, early=self.handed_over % 5 == 0))

    def on_lost(self, delivery):
        if not self.queue_consumer.ledger.holds(delivery):
            self.wrong.append("the run of what is settled is ended")

    @step(count=range(1, 11))
    def receive_elsewhere(self, count=10):
        messages = self.sqs.receive(self.queue.url, count, 0, EVERYTHING)
        self.elsewhere += [message["ReceiptHandle"] for message in messages]

    @step(when=lambda world: world.elsewhere, which=WHICH)
    def succeed_elsewhere(self, which=0):
        handle = self.elsewhere.pop(which % len(self.elsewhere))
        self.done |= {id_ for id_, message in self.messages.items() if message.handle == handle}
        self.sqs.delete(self.queue.url, [handle])

    # Tasks run

    def pick(self, which, *, begun):
        runs = [run for run in self.runs if run.begun is begun]
        return runs[which % len(runs)] if runs else None

    @step(which=WHICH, dispatched=[False, True])
    def begin(self, which=0, dispatched=False):
        run = self.pick(which, begun=False)
        if run is None:
            return
        may = run.delivery.dispatch() if dispatched else True
        if not (may and run.delivery.start()):
            self.runs.remove(run)
            return
        beside = [other for other in self.runs if other.begun and other.message_id == run.message_id]
        assert beside == [], "it is not run twice at once"
        run.begun = True
        if run.early:
            self.end(run, Delete())

    @step(often=3, which=WHICH, how=list(ENDS), **REQUEST)
    def end_run(self, which=0, how="success", steps=0, fault="none"):
        if (run := self.pick(which, begun=True)) is not None:
            self.end(run, ENDS[how](run))
            self.settle(steps, fault)

    def end(self, run, settlement):
        self.runs.remove(run)
        if settlement == Delete():
            self.done.add(run.message_id)
            self.finished_at[run.message_id] = self.now
        run.delivery.settle(settlement)
        assert not run.delivery.settle(Delete()), "a second settlement does nothing"
        if isinstance(settlement, (Delete, DeadLetter)):
            assert run.delivery.current.waiting is None, "what deletes a message waits for nothing"

    @step(which=WHICH, seconds=range(1, 901))
    def extend(self, which=0, seconds=600):
        if (run := self.pick(which, begun=True)) is not None:
            run.delivery.extend(self.now + seconds)

    # Requests are made

    @step(position=POSITIONS, **REQUEST)
    def beat(self, steps=1, fault="none", position=0):
        self.request(self.queue_consumer._heartbeat, steps, fault, position)

    @step(position=POSITIONS, **REQUEST)
    def settle(self, steps=1, fault="none", position=0):
        self.request(self.queue_consumer._settler, steps, fault, position)

    def request(self, work, steps, fault, position):
        """Of the next request the first so many steps."""
        flight = self.take(work) if steps else None
        if flight is not None and steps >= REACHED:
            self.send_through(flight, fault, position)
        if flight is not None and steps >= CONCLUDED:
            self.end_request(flight)

    def take(self, work):
        batch = work.take(self.now)
        if batch is None:
            return None
        flight = Flight(work, batch, self.now)
        changing = [job for other in self.flights if other.changes_visibility for job in other.jobs()]
        others = [delivery.handle for delivery, _ in changing]
        for delivery, _ in flight.jobs():
            held = self.queue_consumer.ledger.holds(delivery)
            assert held is flight.extends, "what is settled is not extended"
            if flight.changes_visibility:
                assert delivery.handle not in others, "one writer a delivery"
                assert delivery.deadline > self.now, "another worker may have it"
        self.flights.append(flight)
        return flight

    @step(which=WHICH, fault=list(FAULTS), position=POSITIONS)
    def reach(self, which=0, fault="none", position=0):
        flights = [flight for flight in self.flights if flight.failed is None]
        if flights:
            self.send_through(flights[which % len(flights)], fault, position)

    def send_through(self, flight, fault, position):
        """A request reaches SQS, or does not."""
        if fault != "the request is lost":
            flight.failed = self.send_off(flight, fault, position)
        if fault.endswith("is lost"):
            flight.failed = dict.fromkeys(range(len(flight.batch)), UnavailableError(fault))

    def send_off(self, flight, fault, position):
        error, jobs = FAULTS[fault], flight.jobs()
        if error is None or not jobs:
            pass
        elif not flight.extends and flight.batch.origin.kind is DeadLetter:
            self.sqs.fail_next(SEND, RequestRefusedError(fault) if "refused" in fault else error)
        else:
            action = CHANGES if flight.changes_visibility else DELETES
            self.sqs.fail_next(action, error, position % len(jobs))
        try:
            failed = dict(flight.batch_threads.send(flight.batch, flight.since).failed)
        except ThrottledError as throttled:
            failed = dict.fromkeys(range(len(flight.batch)), throttled)
        for place, (delivery, asked) in enumerate(jobs):
            if flight.extends and place not in failed:
                assert delivery.handle not in self.hidden_until, "no extension after a retry delay"
            elif flight.changes_visibility and place not in failed:
                self.hidden_until[delivery.handle] = self.now + getattr(asked, "seconds", 0)
        return failed

    @step(which=WHICH)
    def conclude(self, which=0):
        flights = [flight for flight in self.flights if flight.failed is not None]
        if flights:
            self.end_request(flights[which % len(flights)])

    def end_request(self, flight):
        self.flights.remove(flight)
        flight.batch_threads.conclude(flight.batch, flight.since, flight.failed)

    # And time passes

    @step(part=MILLISECONDS, most=[2, 40])
    def wait(self, part, most):
        self.clock.advance(most * part / 1000)

    @step(position=POSITIONS, **REQUEST)
    def wait_for_the_next_beat(self, steps=0, fault="none", position=0):
        if (due := self.queue_consumer.ledger.next_extension()) is not None:
            self.clock.advance(max(0, due - self.now))
        self.beat(steps, fault, position)

    @step(seconds=[TIMEOUT, TIMEOUT + 1, 2000], times=range(12))
    def sleep(self, seconds=TIMEOUT, times=0):
        """The whole machine, or a process that is stopped; seldom."""
        self.clock.advance(seconds if times == 0 else 0)

    @step(often=0.02, when=lambda world: len(world.sent) > LATE)
    def shut_down(self):
        """SIGTERM."""
        self.queue_consumer.stop_polling()
        self.queue_consumer.end_by(self.now, self.now)  # nobody settles while it would wait
        self.queue_consumer.give_back_unstarted()

    @step(often=0.1, when=lambda world: world.receiver.stopping)
    def time_is_up(self):
        """What runs is handed back, and its processes are killed."""
        self.queue_consumer._shutdown._give_back(self.queue_consumer.ledger.all())
        self.runs = [run for run in self.runs if not run.begun]

    @invariant()
    def all_is_well(self):
        assert self.wrong == [], "nothing went wrong where errors are swallowed"
        letters = {message.body for message in self.sqs._queues[self.graves.url].messages}
        assert self.sent - self.messages.keys() <= self.done | letters, "nothing is lost"
        for message in self.messages.values():
            if message.handle in self.hidden_until:
                assert message.visible_at == self.hidden_until[message.handle], "it comes back at its time"
        batches = [flight.batch for flight in self.flights if flight.extends]
        asked = {id(delivery) for batch in batches for delivery, _ in batch.extensions}
        asked |= {id(delivery) for batch in batches for delivery in batch.others}
        for delivery in self.known:
            assert delivery.extending == (id(delivery) in asked), "what is being extended is in a request"
            assert delivery.extending or delivery.waiting is None
            if self.queue_consumer.ledger.holds(delivery):
                assert (delivery.bucket is not None) + delivery.extending + delivery.lost >= 1
            else:
                assert delivery.bucket is None, "only what is held is extended"
        for run in self.runs:
            current = run.delivery.current
            assert current.acknowledged_early is run.delivery.acknowledged_early
            assert current.started is run.begun or not self.queue_consumer.ledger.holds(current)

    def teardown(self):
        try:
            self.end_everything()
        finally:
            self.world.close()

    def end_everything(self):
        self.shut_down()
        self.time_is_up()
        for _ in range(1000):
            self.beat()
            self.settle()
            while any(flight.failed is None for flight in self.flights):
                self.reach()
            while self.flights:
                self.conclude()
            if not self.queue_consumer._settler._unfinished:
                break
            self.clock.advance(0.5)
        assert not self.queue_consumer._settler._unfinished
        assert len(self.queue_consumer.ledger) == 0
        assert self.queue_consumer.ledger.wait_for_extensions(0)
        assert self.queue_consumer.ledger.next_extension() is None
        assert not any(delivery.extending or delivery.waiting for delivery in self.known)
        self.all_is_well()


TestHolding = Holding.TestCase
TestHolding.settings = settings(max_examples=50, stateful_step_count=50)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_in_worlds_of_chance(first):
    """Many: hypothesis tries few, and makes what it finds shorter."""
    for seed in range(first, first + 20):
        chance = random.Random(seed)
        world = Holding()
        try:
            for _ in range(200):
                possible = [each for each in STEPS if each.when(world)]
                (one,) = chance.choices(possible, [each.often for each in possible])
                arguments = {name: chance.choice(values) for name, values in one.choices.items()}
                getattr(world, one.name)(**arguments)
                world.all_is_well()
        finally:
            world.teardown()


@pytest.mark.parametrize(
    ("how", "fault"),
    [("failure", "none"), ("given up", "one is refused")],
    ids=["after a failure", "in place of a dead letter that is refused"],
)
def test_a_hide_waits_for_an_extension_that_sqs_has_not_got_yet(how, fault):
    """An example that was found."""
    world = Holding()
    world.send(begun=1)
    world.wait_for_the_next_beat(steps=1)
    (extension,) = world.flights
    world.end_run(how=how, steps=CONCLUDED, fault=fault)
    world.settle(CONCLUDED)
    assert not any(isinstance(event, Hidden) for event in world.events)
    world.send_through(extension, "none", 0)
    world.end_request(extension)
    world.settle(CONCLUDED)
    assert sum(isinstance(event, Hidden) for event in world.events) == 1
    world.all_is_well()
    world.teardown()
