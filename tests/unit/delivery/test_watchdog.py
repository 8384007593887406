"""A thread that died or hangs is replaced, what it had in hand is done by the other, and it is said."""

from __future__ import annotations

import threading

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.memory import MemorySQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.events import Facts
from celery_sqs_visibility.delivery.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delete, Delivery
from celery_sqs_visibility.delivery.settler import Settler
from celery_sqs_visibility.delivery.watchdog import HANGS, INTERVAL, Watchdog

TIMEOUT = 120
RECEIVE = ReceiveOptions(TIMEOUT)

#: pytest says so where a thread ends with an exception.
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Stubborn(MemorySQS):
    """Its next request does `first`, whatever it is; the others are answered."""

    def __init__(self, clock):
        super().__init__(clock)
        self.first = None
        self.asked = threading.Event()
        self.let_go = threading.Event()

    def change_visibility(self, queue_url, changes):
        self._be_stubborn()
        return super().change_visibility(queue_url, changes)

    def delete(self, queue_url, handles):
        self._be_stubborn()
        return super().delete(queue_url, handles)

    def _be_stubborn(self):
        first, self.first = self.first, None
        if first is not None:
            first(self)

    def hang(self):
        self.asked.set()
        assert self.let_go.wait(10)

    def hang_twice(self):
        self.first = Stubborn.hang
        self.hang()

    def die(self):
        self.asked.set()
        raise SystemExit


class World:
    def __init__(self, first):
        self.clock = FakeClock()
        self.sqs = Stubborn(self.clock)
        self.sqs.first = first
        self.queue = Queue("q", self.sqs.create_queue("q", {}, {}), self.sqs)
        self.ledger = Ledger(TIMEOUT, 40.0)
        self.heartbeat = Heartbeat(self.ledger, self.clock, lambda *_: None)
        self.settled = threading.Semaphore(0)
        self.settler = Settler(0, self.clock, lambda *_: self.settled.release(), lambda *_: None)

    def deliver(self, count):
        for _ in range(count):
            self.sqs.send(self.queue.url, OutgoingMessage("task"))
        now = self.clock.monotonic()
        return [
            Delivery(
                self.queue,
                message["ReceiptHandle"],
                Facts("q", message["MessageId"], 1, 0),
                now,
                now + TIMEOUT,
                None,
            )
            for message in self.sqs.receive(self.queue.url, count, 0, RECEIVE)
        ]

    def count(self, action):
        return sum(1 for done, _ in self.sqs.calls if done == action)

    def extended(self):
        """The handles, in order."""
        batches = [
            asked["changes"] for action, asked in self.sqs.calls if action == "ChangeMessageVisibilityBatch"
        ]
        return [handle for batch in batches for handle, _ in batch]


@pytest.fixture
def make():
    worlds = []

    def new(first):
        worlds.append(World(first))
        return worlds[-1]

    yield new
    for world in worlds:
        world.sqs.let_go.set()
        world.heartbeat.stop()
        world.settler.stop()


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come true")


@DIES
@pytest.mark.parametrize("first", [Stubborn.hang, Stubborn.die])
def test_another_thread_extends_what_a_heartbeat_had_in_hand(make, first, caplog):
    world = make(first)
    deliveries = world.deliver(3)
    world.ledger.add(deliveries)
    world.clock.advance(TIMEOUT - 40)
    world.heartbeat.start()
    assert world.sqs.asked.wait(5)
    world.clock.advance(HANGS)
    if first is Stubborn.die:
        wait_for(lambda: not world.heartbeat._thread.is_alive())
    world.heartbeat.look_after(world.clock.monotonic())
    world.clock.advance(10)
    world.heartbeat.notice()
    wait_for(lambda: all(delivery.deadline > 1000 + TIMEOUT for delivery in deliveries))
    told = [record.getMessage() for record in caplog.records]
    what = "hangs" if first is Stubborn.hang else "died"
    assert told == [f"the heartbeat's thread {what}: another has taken its place"]
    extended = [delivery.deadline for delivery in deliveries]
    world.sqs.let_go.set()  # what the first thread is told now is no news
    world.heartbeat.look_after(world.clock.monotonic())
    assert [delivery.deadline for delivery in deliveries] == extended


def test_a_helper_of_the_heartbeat_that_hangs_is_told_and_what_it_had_in_hand_is_tried_again(make, caplog):
    world = make(Stubborn.hang)
    deliveries = world.deliver(3)
    world.ledger.add(deliveries)
    world.heartbeat._thread = threading.current_thread()  # alive, and with nothing in hand
    world.clock.advance(TIMEOUT - 40)
    due, _ = world.ledger.take_due(world.clock.monotonic())
    world.heartbeat._batches.extend(due.items())
    threading.Thread(target=world.heartbeat._work_off, daemon=True).start()
    assert world.sqs.asked.wait(5)
    world.clock.advance(HANGS)
    world.heartbeat.look_after(world.clock.monotonic())
    assert world.heartbeat._thread is threading.current_thread()
    assert not any(delivery.extending for delivery in deliveries)
    assert [record.getMessage() for record in caplog.records] == [
        "a helper of the heartbeat died or hangs: what it had in hand is tried again"
    ]


def relieve(world):
    """The heartbeat's thread hangs, and another takes its place; the one that hangs."""
    assert world.sqs.asked.wait(5)
    world.sqs.asked.clear()
    thread = world.heartbeat._thread
    world.clock.advance(HANGS)
    world.heartbeat.look_after(world.clock.monotonic())
    assert world.heartbeat._thread is not thread
    return thread


def let_return(world, *relieved):
    """The calls that hang are answered, and all threads end."""
    threads = [*relieved, world.heartbeat._thread]
    world.sqs.let_go.set()
    world.heartbeat.stop()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_two_that_hung_one_after_the_other_and_return_together_leave_nothing_as_being_extended(make):
    world = make(Stubborn.hang_twice)
    first = world.deliver(10)
    world.ledger.add(first)
    world.clock.advance(25)
    second = world.deliver(10)
    world.ledger.add(second)
    world.clock.advance(TIMEOUT - 40 - 25)
    world.heartbeat.start()
    one = relieve(world)
    world.clock.advance(10)
    world.heartbeat.notice()
    other = relieve(world)
    let_return(world, one, other)
    world.heartbeat.beat()
    assert not any(delivery.extending for delivery in first + second)
    assert {world.ledger.settle(delivery, Delete()) for delivery in first + second} == {(True, True)}


def test_what_another_thread_has_taken_over_is_not_extended_by_the_one_that_hung(make):
    world = make(Stubborn.hang)
    deliveries = world.deliver(10) + world.deliver(10)
    world.ledger.add(deliveries)
    world.clock.advance(TIMEOUT - 40)
    world.heartbeat.start()
    hung = relieve(world)
    wait_for(lambda: not any(delivery.extending for delivery in deliveries))
    extended = world.extended()
    assert len(extended) == 10, "what the other had in hand is tried again later"
    assert {world.ledger.settle(delivery, Delete()) for delivery in deliveries} == {(True, True)}
    let_return(world, hung)
    assert world.extended()[:10] == extended
    assert len(set(world.extended())) == len(world.extended()) == 20, "its own call has got through, no more"


@DIES
@pytest.mark.parametrize("first", [Stubborn.hang, Stubborn.die])
def test_another_thread_settles_what_a_settler_had_in_hand(make, first, caplog):
    world = make(first)
    world.settler.start()
    for delivery in world.deliver(3):
        world.settler.submit(delivery, Delete())
    assert world.sqs.asked.wait(5)
    world.clock.advance(HANGS + 1)
    if first is Stubborn.die:
        wait_for(lambda: not all(thread.is_alive() for thread in world.settler._threads.values()))
    world.settler.look_after(world.clock.monotonic())
    world.clock.advance(5)  # the pause after a failure
    assert world.settler.flush(5)
    for _ in range(3):
        assert world.settled.acquire(timeout=5)
    world.sqs.let_go.set()
    what = "hangs" if first is Stubborn.hang else "died"
    assert caplog.records[0].getMessage() == (
        f"a thread that settles messages {what}: another has taken its place"
    )
    assert not world.settled.acquire(timeout=0.1)


def test_who_works_is_left_alone(make, caplog):
    world = make(Stubborn.hang)
    world.ledger.add(world.deliver(1))
    world.clock.advance(TIMEOUT - 40)
    world.heartbeat.start()
    assert world.sqs.asked.wait(5)
    world.clock.advance(HANGS - 1)
    thread = world.heartbeat._thread
    world.heartbeat.look_after(world.clock.monotonic())
    world.settler.look_after(world.clock.monotonic())
    assert world.heartbeat._thread is thread
    assert caplog.records == []


class Wards:
    def __init__(self, clock):
        self.clock = clock
        self.looks = []

    def look_after(self, now):
        self.looks.append(now)
        raise ZeroDivisionError


def test_a_stumbling_ward_does_not_keep_the_watchdog_from_the_others(caplog):
    clock = FakeClock()
    wards = [Wards(clock), Wards(clock)]
    Watchdog(lambda: wards, clock).look(5.0)
    assert [ward.looks for ward in wards] == [[5.0], [5.0]]
    assert caplog.records[0].getMessage() == "watchdog stumbled and goes on"


def test_after_the_process_was_stopped_answers_have_time_to_come():
    clock = FakeClock()
    ward = Wards(clock)
    watchdog = Watchdog(lambda: [ward], clock)

    class Stopped:
        """The event that the thread waits for, between two looks."""

        def __init__(self):
            self.steps = iter([INTERVAL, 60, INTERVAL])

        def wait(self, _timeout):
            step = next(self.steps, None)
            clock.advance(step or 0)
            return step is None

    began = clock.monotonic()
    watchdog._run(Stopped())
    assert ward.looks == [began + INTERVAL, began + INTERVAL + 60 + INTERVAL]
