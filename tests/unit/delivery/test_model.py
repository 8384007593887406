"""What holds messages, as a model: any step at any time, any fault in any request; nothing is lost.

The steps are a consumer's own, on one thread and a clock that the machine turns: a request is taken, reaches
SQS, and its answer is concluded, and anything may happen in between. Users' listeners and logging filters
raise.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.clock import FakeClock
from support.logs import a_filter_that_raises

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.hold.redelivery import Past, RedeliveryIndex
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Hide, Lapse, Release
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.decoder import DecodedMessage
from celery_sqs_visibility.errors import (
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import Hidden, Lost, Released, subscribe
from celery_sqs_visibility.policy.options import Options

TIMEOUT = 120
INTERVAL = 40
RECEIVE = ReceiveOptions(visibility_timeout=TIMEOUT, system_attributes=("All",))
DELETES, CHANGES, SEND = "DeleteMessageBatch", "ChangeMessageVisibilityBatch", "SendMessage"

#: What may become of a request. Where it says so, of the entry at a position.
FAULTS = ["none", "the request is lost", "the answer is lost", "one is throttled", "one is refused"]

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


class AnyCapacity:
    """Capacity for whatever comes; that it counts right is tested elsewhere."""

    def __getattr__(self, name):
        return lambda *_, **__: None


class Receiver:
    """The machine polls in its place."""

    queue = SimpleNamespace(name="q")
    stopping = False

    def expect(self, message_id, at):
        pass

    def stop(self):
        self.stopping = True

    def wait_for_polls(self, until):
        pass


class Flight:
    """A request of batch threads, from its beginning to its conclusion."""

    def __init__(self, batch_threads, batch, since):
        self.batch_threads, self.batch, self.since = batch_threads, batch, since
        self.failed = None  # by position; `None` until it is known

    def jobs(self):
        """Pairs of a delivery and what is asked for it, seconds of an extension or a settlement."""
        if hasattr(self.batch, "extensions"):
            return self.batch.extensions
        return [(one.delivery, one.settlement) for one in self.batch.settlements]

    @property
    def extends(self):
        return hasattr(self.batch, "extensions")

    @property
    def changes_visibility(self):
        return self.extends or self.batch.origin.kind is Hide


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
        self.queue = Queue("q", self.sqs.create_queue("q", {}, {}), self.sqs)
        self.graves = Queue("graves", self.sqs.create_queue("graves", {}, {}), self.sqs)
        self.queue_consumer = self.new_queue_consumer()
        self.sent = set()
        self.runs = []
        self.handed_over = 0
        self.flights = []
        self.done = set()  # ids of messages of which a run succeeded, here or elsewhere
        self.finished_at = {}  # and when, here
        self.hidden_until = {}  # by handle, since SQS was last told to
        self.elsewhere = []  # handles that other workers have
        self.wrong = []  # what may not raise where it happens
        self.lost = 0  # deliveries whose runs were to be ended
        self.known = []  # every delivery there ever was
        self.events = []
        self.world = ExitStack()
        self.world.callback(subscribe(self.events.append))
        self.world.callback(subscribe(lambda event: 1 / 0))
        self.world.enter_context(a_filter_that_raises())

    def new_queue_consumer(self):
        redrive = RedriveBook(lambda: self.graves)
        redrive.get(self.queue, self.clock.monotonic())
        redrive.find_dead_letter_queue(self.queue)
        options = {"visibility_timeout": TIMEOUT, "heartbeat_interval": INTERVAL, "settle_window": 0}
        queue_consumer = QueueConsumer(
            Options.parse(options),
            RECEIVE,
            lambda _queue, message: DecodedMessage({"handle": message["ReceiptHandle"]}),
            redrive,
            RedeliveryIndex(TIMEOUT, self.clock),
            Buffer(),
            self.clock,
        )
        queue_consumer.capacity = AnyCapacity()
        queue_consumer._receivers.add(Receiver(), self.on_message)
        return queue_consumer

    @property
    def now(self):
        return self.clock.monotonic()

    @property
    def messages(self):
        """What SQS has, by id."""
        return {message.id: message for message in self.sqs._queues[self.queue.url].messages}

    # Messages come

    @rule(count=st.integers(1, 4), begun=st.sampled_from([4, 2, 1, 0]), transit=st.floats(0, 1))
    def send(self, count=1, begun=0, transit=0.0):
        """That many messages, which arrive here; so many of what waits begins."""
        self.sent |= {self.sqs.send(self.queue.url, OutgoingMessage("task")) for _ in range(count)}
        self.receive(transit=transit)
        for _ in range(begun):
            self.begin()

    @rule(count=st.integers(1, 10), transit=st.floats(0, 1), handed_over=st.booleans())
    def receive(self, count=10, transit=0.0, handed_over=True):
        """A poll; after the shutdown has begun, one that was under way."""
        asked = self.now
        messages = self.sqs.receive(self.queue.url, count, 0, RECEIVE)
        self.clock.advance(transit)
        self.queue_consumer._arrived(self.queue, messages, asked, self.now)
        handles = [message["ReceiptHandle"] for message in messages]
        self.known += filter(None, map(self.queue_consumer.ledger.get, handles))
        if handed_over:
            self.hand_over()

    @rule()
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
        self.lost += 1

    @rule(count=st.integers(1, 10))
    def receive_elsewhere(self, count=10):
        messages = self.sqs.receive(self.queue.url, count, 0, RECEIVE)
        self.elsewhere += [message["ReceiptHandle"] for message in messages]

    @precondition(lambda self: self.elsewhere)
    @rule(which=st.integers(0, 99))
    def succeed_elsewhere(self, which=0):
        handle = self.elsewhere.pop(which % len(self.elsewhere))
        self.done |= {id_ for id_, message in self.messages.items() if message.handle == handle}
        self.sqs.delete(self.queue.url, [handle])

    # Tasks run

    def pick(self, which, *, begun):
        runs = [run for run in self.runs if run.begun is begun]
        return runs[which % len(runs)] if runs else None

    @rule(which=st.integers(0, 99), dispatched=st.booleans())
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

    @rule(
        which=st.integers(0, 99),
        how=st.sampled_from(list(ENDS)),
        steps=st.sampled_from(HOW_FAR),
        fault=st.sampled_from(FAULTS),
    )
    def end_run(self, which=0, how="success", steps=0, fault="none"):
        run = self.pick(which, begun=True)
        if run is not None:
            self.end(run, ENDS[how](run))
        if run is not None and steps:
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

    @rule(which=st.integers(0, 99), seconds=st.integers(1, 900))
    def extend(self, which=0, seconds=600):
        if (run := self.pick(which, begun=True)) is not None:
            run.delivery.extend(self.now + seconds)

    # Requests are made

    @rule(fault=st.sampled_from(FAULTS), position=st.integers(0, 9), steps=st.sampled_from(HOW_FAR))
    def beat(self, steps=1, fault="none", position=0):
        self.request(self.queue_consumer._heartbeat, steps, fault, position)

    @rule(fault=st.sampled_from(FAULTS), position=st.integers(0, 9), steps=st.sampled_from(HOW_FAR))
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
        others = [
            delivery.handle
            for other in self.flights
            if other.changes_visibility
            for delivery, _ in other.jobs()
        ]
        for delivery, _ in flight.jobs():
            held = self.queue_consumer.ledger.holds(delivery)
            assert held is flight.extends, "what is settled is not extended"
            if flight.changes_visibility:
                assert delivery.handle not in others, "one writer a delivery"
                assert delivery.deadline > self.now, "another worker may have it"
        self.flights.append(flight)
        return flight

    @rule(which=st.integers(0, 99), fault=st.sampled_from(FAULTS), position=st.integers(0, 9))
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
        error = {
            "one is throttled": ThrottledError(fault),
            "one is refused": ReceiptHandleInvalidError(fault),
        }.get(fault)
        letters = not flight.extends and flight.batch.origin.kind is DeadLetter
        action = CHANGES if flight.changes_visibility else SEND if letters else DELETES
        if error is not None and flight.jobs():
            if letters:
                self.sqs.fail_next(SEND, RequestRefusedError(fault) if "refused" in fault else error)
            else:
                self.sqs.fail_next(action, error, position % len(flight.jobs()))
        try:
            failed = dict(flight.batch_threads.send(flight.batch, flight.since).failed)
        except ThrottledError as throttled:
            failed = dict.fromkeys(range(len(flight.batch)), throttled)
        for place, (delivery, asked) in enumerate(flight.jobs()):
            if flight.changes_visibility and place not in failed:
                self.note_change(flight, delivery, asked)
        return failed

    def note_change(self, flight, delivery, asked):
        if flight.extends:
            assert delivery.handle not in self.hidden_until, "no extension after a retry delay"
        else:
            self.hidden_until[delivery.handle] = self.now + getattr(asked, "seconds", 0)

    @rule(which=st.integers(0, 99))
    def conclude(self, which=0):
        flights = [flight for flight in self.flights if flight.failed is not None]
        if flights:
            self.end_request(flights[which % len(flights)])

    def end_request(self, flight):
        self.flights.remove(flight)
        flight.batch_threads.conclude(flight.batch, flight.since, flight.failed)

    # And time passes

    @rule(seconds=st.one_of(st.floats(0, 2), st.floats(0, 40)))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(steps=st.sampled_from(HOW_FAR), fault=st.sampled_from(FAULTS), position=st.integers(0, 9))
    def wait_for_the_next_beat(self, steps=0, fault="none", position=0):
        if (due := self.queue_consumer.ledger.next_extension()) is not None:
            self.clock.advance(max(0, due - self.now))
        if steps:
            self.beat(steps, fault, position)

    @rule(seconds=st.sampled_from([TIMEOUT, TIMEOUT + 1, 2000]), times=st.integers(0, 9))
    def sleep(self, seconds=TIMEOUT, times=0):
        """The whole machine, or a process that is stopped; seldom."""
        self.clock.advance(seconds if times == 0 else 0)

    @precondition(lambda self: len(self.sent) > LATE)
    @rule()
    def shut_down(self):
        """SIGTERM."""
        self.queue_consumer.stop_polling()
        self.queue_consumer.end_by(self.now, self.now)  # nobody settles while it would wait
        self.queue_consumer.give_back_unstarted()

    @precondition(lambda self: self.queue_consumer._receivers.get("q").stopping)
    @rule()
    def time_is_up(self):
        """What runs is handed back, and its processes are killed."""
        self.queue_consumer._shutdown._give_back(self.queue_consumer.ledger.all())
        self.runs = [run for run in self.runs if not run.begun]

    # What must hold

    @invariant()
    def nothing_is_lost(self):
        letters = {message.body for message in self.sqs._queues[self.graves.url].messages}
        assert self.sent - self.messages.keys() <= self.done | letters

    @invariant()
    def what_was_hidden_comes_back_at_its_time(self):
        for message in self.messages.values():
            if message.handle in self.hidden_until:
                assert message.visible_at == self.hidden_until[message.handle]

    @invariant()
    def what_is_being_extended_is_in_a_request(self):
        asked = {id(one) for flight in self.flights if flight.extends for one, _ in flight.batch.extensions}
        asked |= {id(one) for flight in self.flights if flight.extends for one in flight.batch.others}
        for delivery in self.known:
            assert delivery.extending == (id(delivery) in asked)
            assert delivery.extending or delivery.waiting is None

    @invariant()
    def what_is_held_is_extended_or_lost_and_nothing_else_is(self):
        for delivery in self.known:
            if self.queue_consumer.ledger.holds(delivery):
                assert (delivery.bucket is not None) + delivery.extending + delivery.lost >= 1
            else:
                assert delivery.bucket is None

    @invariant()
    def nothing_went_wrong_where_errors_are_swallowed(self):
        assert self.wrong == []

    @invariant()
    def a_run_is_known_for_what_it_is(self):
        for run in self.runs:
            current = run.delivery.current
            assert current.acknowledged_early is run.delivery.acknowledged_early
            assert current.started is run.begun or not self.queue_consumer.ledger.holds(current)

    def teardown(self):
        """Everything ends."""
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
        self.nothing_is_lost()


TestHolding = Holding.TestCase
TestHolding.settings = settings(max_examples=50, stateful_step_count=50)

INVARIANTS = [
    Holding.nothing_is_lost,
    Holding.what_was_hidden_comes_back_at_its_time,
    Holding.what_is_being_extended_is_in_a_request,
    Holding.what_is_held_is_extended_or_lost_and_nothing_else_is,
    Holding.nothing_went_wrong_where_errors_are_swallowed,
    Holding.a_run_is_known_for_what_it_is,
]


def steps_of(world, chance):
    """Every step, each with arguments by chance, the frequent ones more than once."""

    def which():
        return chance.randrange(100)

    def request():
        return {"steps": chance.choice(HOW_FAR), "fault": chance.choice(FAULTS)}

    def end_run():
        world.end_run(which(), chance.choice(list(ENDS)), **request())

    def end_of_the_worker():
        if chance.random() < 0.02:
            world.shut_down()
        if world.queue_consumer._receivers.get("q").stopping and chance.random() < 0.1:
            world.time_is_up()

    return [
        lambda: world.send(chance.randint(1, 4), chance.choice([4, 2, 1, 0]), chance.random()),
        lambda: world.receive(chance.randint(1, 10), chance.random(), handed_over=chance.random() < 0.7),
        world.hand_over,
        lambda: world.receive_elsewhere(chance.randint(1, 10)),
        lambda: world.succeed_elsewhere(which()) if world.elsewhere else None,
        lambda: world.begin(which(), dispatched=chance.random() < 0.5),
        *[end_run] * 3,
        lambda: world.extend(which(), chance.randint(1, 900)),
        lambda: world.beat(position=chance.randrange(10), **request()),
        lambda: world.settle(position=chance.randrange(10), **request()),
        lambda: world.reach(which(), chance.choice(FAULTS), chance.randrange(10)),
        lambda: world.conclude(which()),
        lambda: world.wait(chance.random() * chance.choice([2, 40])),
        lambda: world.wait_for_the_next_beat(position=chance.randrange(10), **request()),
        lambda: world.sleep(chance.choice([TIMEOUT, TIMEOUT + 1, 2000]), chance.randrange(15)),
        end_of_the_worker,
    ]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_in_worlds_of_chance(first):
    """Long ones: hypothesis tries short ones, and makes what it finds shorter."""
    for seed in range(first, first + 20):
        chance = random.Random(seed)
        world = Holding()
        steps = steps_of(world, chance)
        try:
            for _ in range(200):
                chance.choice(steps)()
                for invariant_holds in INVARIANTS:
                    invariant_holds(world)
        finally:
            world.teardown()


class TestExamples:
    """Named after what was found wrong."""

    @pytest.fixture
    def world(self):
        world = Holding()
        yield world
        for invariant_holds in INVARIANTS:
            invariant_holds(world)
        world.teardown()

    def being_extended(self, world):
        """A run, and the request that extends its message, which SQS has not got yet."""
        world.send(begun=1)
        world.wait_for_the_next_beat(steps=1)
        (flight,) = world.flights
        return flight

    def of(self, world, kind):
        return [event for event in world.events if isinstance(event, kind)]

    def test_a_hide_waits_for_it(self, world):
        flight = self.being_extended(world)
        world.end_run(how="failure", steps=CONCLUDED)
        assert self.of(world, Hidden) == []
        world.send_through(flight, "none", 0)
        world.end_request(flight)
        world.settle(CONCLUDED)
        assert len(self.of(world, Hidden)) == 1

    def test_so_does_what_is_done_where_a_dead_letter_is_refused(self, world):
        flight = self.being_extended(world)
        world.end_run(how="given up", steps=CONCLUDED, fault="one is refused")
        world.settle(CONCLUDED)
        assert self.of(world, Hidden) == []
        world.send_through(flight, "none", 0)
        world.end_request(flight)
        world.settle(CONCLUDED)
        assert len(self.of(world, Hidden)) == 1

    @pytest.mark.parametrize("how", ["failure", "release"])
    def test_what_another_worker_may_have_is_not_hidden_nor_released(self, world, how):
        world.send(begun=1)
        world.end_run(how=how, steps=CONCLUDED, fault="the request is lost")
        world.sleep(TIMEOUT)
        world.receive_elsewhere()
        changes = len(world.sqs.calls)
        world.settle(CONCLUDED)
        assert CHANGES not in [action for action, _ in world.sqs.calls[changes:]]
        assert (self.of(world, Hidden), self.of(world, Released)) == ([], [])
        assert len(self.of(world, Lost)) == 1

    def test_what_was_finished_and_could_not_be_deleted_is_not_run_again_however_many_follow(self, world):
        world.send(begun=1)
        world.end_run(steps=CONCLUDED, fault="one is refused")
        for number in range(20_000):
            world.queue_consumer._redeliveries.remember(Past.FINISHED, world.graves, str(number))
        world.sleep(TIMEOUT)
        world.receive()
        assert world.runs == []

    def test_what_supersedes_another_is_acknowledged_early_too(self, world):
        world.send(count=4)
        world.send(count=1)
        early = next(run for run in world.runs if run.early)
        world.sleep(TIMEOUT)
        world.receive()
        assert early.delivery.current is not early.delivery
        assert early.delivery.current.acknowledged_early
