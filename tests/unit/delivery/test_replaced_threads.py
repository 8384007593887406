"""A batch of the heartbeat's or the settler's whose thread died or hangs is taken over by another, once."""

import threading
from collections import deque

import pytest
from support import factories
from support.clock import FakeClock
from support.factories import CHANGES, TIMEOUT, every_queue
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.core.batches import PendingSettlement
from celery_sqs_visibility.core.held import Held
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.settler import Settler
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS

#: pytest says so where a thread ends with an exception.
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Stubborn(FakeSQS):
    """Of its next requests each hangs, or has its thread die, as told; the others are answered."""

    def __init__(self, clock, *how):
        super().__init__(clock)
        self.how = deque(how)
        self.asked = threading.Event()
        self.stuck = None  # the thread that asked last
        self.let_go = threading.Event()

    def change_visibility(self, queue_url, changes, **how):
        self._be_stubborn()
        return super().change_visibility(queue_url, changes, **how)

    def delete(self, queue_url, handles):
        self._be_stubborn()
        return super().delete(queue_url, handles)

    def _be_stubborn(self):
        try:
            how = self.how.popleft()
        except IndexError:
            return
        self.stuck = threading.current_thread()
        self.asked.set()
        if how == "died":
            raise SystemExit
        assert self.let_go.wait(SOON)


class World:
    def __init__(self, *how):
        self.clock = FakeClock()
        self.sqs = Stubborn(self.clock, *how)
        self.queue = factories.queue(self.sqs)
        self.core = Held(every_queue(TIMEOUT, 40.0), TIMEOUT)
        self.heartbeat = Heartbeat(self.core, lambda *_: None, Pump(self.clock))
        self.settled = []
        self.settler = Settler(
            self.core.batches,
            lambda ended, _now: self.settled.extend(one.delivery for one, _ in ended),
            CopyPermissions(self.clock),
            Pump(self.clock),
        )

    def held(self, count):
        """That many deliveries."""
        deliveries = factories.received(self.queue, count, self.clock)
        self.core.receive(deliveries, self.clock.monotonic())
        return deliveries

    def extended(self):
        """The handles, in order."""
        return [handle for batch in factories.entries(self.sqs, CHANGES) for handle, _ in batch]

    def others_are_done(self, extended):
        """So many are extended, and no more than one batch is being extended."""
        return len(self.extended()) == extended and sum(one.extending for one in self.core.of(None)) <= 10

    def relieve(self, threads, how="hangs", *, extended=0):
        """A thread hangs or has died, and another takes its place; the one that was stuck."""
        assert self.sqs.asked.wait(SOON)
        self.sqs.asked.clear()
        stuck = self.sqs.stuck
        if how == "died":
            stuck.join(SOON)
        wait_until(lambda: self.others_are_done(extended), SOON, "the other threads to return")
        self.clock.advance(HUNG_AFTER_SECONDS)
        threads._pump.replace_stuck(self.clock.monotonic())
        return stuck

    def let_return(self, *relieved):
        """The calls that hang are answered, and their threads end."""
        self.sqs.let_go.set()
        self.heartbeat.lane.stop()
        for thread in relieved:
            thread.join(SOON)
            assert not thread.is_alive()


def wake(lane):
    with lane.lock:
        lane.wake()


@pytest.fixture
def make():
    worlds = []

    def new(*how):
        worlds.append(World(*how))
        return worlds[-1]

    yield new
    for world in worlds:
        world.sqs.let_go.set()
        world.heartbeat.lane.stop()
        world.settler.lane.stop()


@DIES
@pytest.mark.parametrize("how", ["hangs", "died"])
@pytest.mark.parametrize("does", ["extends", "settles"])
def test_another_thread_does_what_one_was_sending_and_a_late_answer_counts_for_nothing(
    make, does, how, caplog
):
    world = make(how)
    deliveries = world.held(3)
    if does == "extends":
        world.clock.advance(TIMEOUT - 40)
        threads, action = world.heartbeat.lane, "extend"
    else:
        for delivery in deliveries:
            world.core.batches.add(PendingSettlement(delivery, Delete(), world.clock.monotonic()))
        threads, action = world.settler.lane, "delete"
    threads.start()
    stuck = world.relieve(threads, how)
    world.clock.advance(10)
    wake(threads)  # it may be asleep by now, on a clock that stood still
    wait_until(lambda: len(world.settled) + len(world.extended()) == 3, SOON, "the others")
    wait_until(lambda: len(caplog.messages) == 3, SOON, "the log")
    assert caplog.messages == [
        f"a thread that {does} messages {how}; another takes its place",
        f"cannot {action} messages: no answer; trying again (queue=q)",
        f"can {action} messages again after 10 s (queue=q failures=1)",
    ]
    done = [one.deadline for one in deliveries], [*world.settled]
    world.let_return(stuck)
    threads._pump.replace_stuck(world.clock.monotonic())
    assert ([one.deadline for one in deliveries], world.settled) == done
    assert all(one.deadline > 1000 + TIMEOUT for one in deliveries) == (does == "extends")


def test_two_that_hung_one_after_the_other_and_return_together_leave_nothing_as_being_extended(make):
    world = make("hangs", "hangs")
    threads = world.heartbeat.lane
    deliveries = world.held(10)
    world.clock.advance(25)
    deliveries += world.held(10)
    world.clock.advance(TIMEOUT - 40 - 25)
    threads.start()
    one = world.relieve(threads)
    world.clock.advance(10)
    wake(threads)  # as above
    other = world.relieve(threads, extended=10)
    world.let_return(one, other)
    work_off(threads)
    wait_until(lambda: not any(delivery.extending for delivery in deliveries), SOON, "all to be concluded")
    assert all(world.core.settle(delivery, Delete(), world.clock.monotonic()) for delivery in deliveries)


def test_what_another_thread_has_taken_over_is_not_extended_by_the_one_that_hung(make):
    world = make("hangs")
    threads = world.heartbeat.lane
    deliveries = world.held(20)
    world.clock.advance(TIMEOUT - 40)
    threads.start()
    hung = world.relieve(threads, extended=10)
    wait_until(lambda: not any(delivery.extending for delivery in deliveries), SOON, "all to be concluded")
    extended = world.extended()
    assert len(extended) == 10, "what the other was sending is tried again later"
    assert all(world.core.settle(delivery, Delete(), world.clock.monotonic()) for delivery in deliveries)
    world.let_return(hung)
    assert world.extended()[:10] == extended
    assert len(set(world.extended())) == len(world.extended()) == 20, "its own call has got through, no more"
