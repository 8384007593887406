"""A batch of the heartbeat's or the settler's whose thread died or hangs is taken over by another, once."""

from __future__ import annotations

import threading

import pytest
from support import factories
from support.batch_threads import work_off
from support.clock import FakeClock
from support.factories import CHANGES, TIMEOUT
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.hold.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delete
from celery_sqs_visibility.delivery.settle.settler import Settler
from celery_sqs_visibility.delivery.supervisor import HUNG_AFTER_SECONDS

#: pytest says so where a thread ends with an exception.
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Stubborn(FakeSQS):
    """Its next request does `first`, whatever it is; the others are answered."""

    def __init__(self, clock):
        super().__init__(clock)
        self.first = None
        self.lock = threading.Lock()  # guards it: two may ask at once
        self.asked = threading.Event()
        self.hung = None  # the thread that did last
        self.let_go = threading.Event()

    def change_visibility(self, queue_url, changes):
        self._be_stubborn()
        return super().change_visibility(queue_url, changes)

    def delete(self, queue_url, handles):
        self._be_stubborn()
        return super().delete(queue_url, handles)

    def _be_stubborn(self):
        with self.lock:
            first, self.first = self.first, None
        if first is not None:
            first(self)

    def hang(self):
        self.hung = threading.current_thread()
        self.asked.set()
        assert self.let_go.wait(SOON)

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
        self.queue = factories.queue(self.sqs)
        self.ledger = Ledger(TIMEOUT, 40.0)
        self.heartbeat = Heartbeat(self.ledger, self.clock, lambda *_: None)
        self.settled = threading.Semaphore(0)
        self.settler = Settler(0, self.clock, lambda *_: self.settled.release(), lambda *_: None)

    def held(self, count):
        """That many deliveries."""
        deliveries = factories.received(self.queue, count, self.clock)
        self.ledger.add(deliveries)
        return deliveries

    def beat(self):
        """Have the heartbeat's threads extend what is due."""
        self.heartbeat.batch_threads.start()

    def extended(self):
        """The handles, in order."""
        return [handle for batch in factories.entries(self.sqs, CHANGES) for handle, _ in batch]


@pytest.fixture
def make():
    worlds = []

    def new(first):
        worlds.append(World(first))
        return worlds[-1]

    yield new
    for world in worlds:
        world.sqs.let_go.set()
        world.heartbeat.batch_threads.stop()
        world.settler.batch_threads.stop()


@DIES
@pytest.mark.parametrize("first", [Stubborn.hang, Stubborn.die])
def test_another_thread_extends_what_a_heartbeat_was_sending(make, first, caplog):
    world = make(first)
    deliveries = world.held(3)
    world.clock.advance(TIMEOUT - 40)
    world.beat()
    assert world.sqs.asked.wait(SOON)
    world.clock.advance(HUNG_AFTER_SECONDS)
    if first is Stubborn.die:
        wait_until(
            lambda: not any(thread.is_alive() for thread in world.heartbeat.batch_threads._threads),
            SOON,
            "the thread to end",
        )
    world.heartbeat.batch_threads.replace_stuck(world.clock.monotonic())
    world.clock.advance(10)
    world.heartbeat.batch_threads.wake()  # it may be asleep by now, on a clock that stood still
    wait_until(
        lambda: all(delivery.deadline > 1000 + TIMEOUT for delivery in deliveries), SOON, "the extensions"
    )
    what = "hangs" if first is Stubborn.hang else "died"
    assert caplog.messages == [
        f"a thread that extends messages {what}; another takes its place",
        "cannot extend messages: no answer; trying again (queue=q)",
        "can extend messages again after 10 s (queue=q failures=1)",
    ]
    extended = [delivery.deadline for delivery in deliveries]
    world.sqs.let_go.set()  # the late answer of the first thread counts for nothing
    world.heartbeat.batch_threads.replace_stuck(world.clock.monotonic())
    assert [delivery.deadline for delivery in deliveries] == extended


def relieve(world):
    """The heartbeat's thread hangs, and another takes its place; the one that hangs."""
    assert world.sqs.asked.wait(SOON)
    world.sqs.asked.clear()
    batch_threads, thread = world.heartbeat.batch_threads, world.sqs.hung
    wait_until(lambda: set(batch_threads._in_progress) == {thread}, SOON, "the others to have returned")
    world.clock.advance(HUNG_AFTER_SECONDS)
    batch_threads.replace_stuck(world.clock.monotonic())
    assert thread not in batch_threads._threads
    return thread


def let_return(world, *relieved):
    """The calls that hang are answered, and their threads end."""
    world.sqs.let_go.set()
    world.heartbeat.batch_threads.stop()
    for thread in relieved:
        thread.join(SOON)
        assert not thread.is_alive()


def test_two_that_hung_one_after_the_other_and_return_together_leave_nothing_as_being_extended(make):
    world = make(Stubborn.hang_twice)
    first = world.held(10)
    world.clock.advance(25)
    second = world.held(10)
    world.clock.advance(TIMEOUT - 40 - 25)
    world.beat()
    one = relieve(world)
    world.clock.advance(10)
    world.heartbeat.batch_threads.wake()  # as above
    other = relieve(world)
    let_return(world, one, other)
    work_off(world.heartbeat.batch_threads)
    assert not any(delivery.extending for delivery in first + second)
    assert {world.ledger.settle(delivery, Delete()) for delivery in first + second} == {(True, True)}


def test_what_another_thread_has_taken_over_is_not_extended_by_the_one_that_hung(make):
    world = make(Stubborn.hang)
    deliveries = world.held(20)
    world.clock.advance(TIMEOUT - 40)
    world.beat()
    hung = relieve(world)
    wait_until(lambda: not any(delivery.extending for delivery in deliveries), SOON, "all to be concluded")
    extended = world.extended()
    assert len(extended) == 10, "what the other was sending is tried again later"
    assert {world.ledger.settle(delivery, Delete()) for delivery in deliveries} == {(True, True)}
    let_return(world, hung)
    assert world.extended()[:10] == extended
    assert len(set(world.extended())) == len(world.extended()) == 20, "its own call has got through, no more"


@DIES
@pytest.mark.parametrize("first", [Stubborn.hang, Stubborn.die])
def test_another_thread_settles_what_a_settler_was_sending(make, first, caplog):
    world = make(first)
    world.settler.batch_threads.start()
    for delivery in factories.received(world.queue, 3, world.clock):
        world.settler.submit(delivery, Delete())
    assert world.sqs.asked.wait(SOON)
    world.clock.advance(HUNG_AFTER_SECONDS + 1)
    if first is Stubborn.die:
        wait_until(
            lambda: not all(thread.is_alive() for thread in world.settler.batch_threads._threads),
            SOON,
            "the thread to end",
        )
    world.settler.batch_threads.replace_stuck(world.clock.monotonic())
    world.clock.advance(5)  # the pause after a failure
    assert world.settler.flush(SOON)
    for _ in range(3):
        assert world.settled.acquire(timeout=SOON)
    world.sqs.let_go.set()
    what = "hangs" if first is Stubborn.hang else "died"
    assert caplog.records[0].getMessage() == (
        f"a thread that settles messages {what}; another takes its place"
    )
    assert not world.settled.acquire(timeout=0.1)
