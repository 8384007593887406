"""What is held stays hidden: up to the horizon, in full batches, and honestly told when it is lost."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batch_threads import work_off
from support.clock import FakeClock
from support.logs import a_filter_that_raises
from support.processes import SOON

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.hold.heartbeat import DEADLINE_PASSED, HORIZON_REACHED, Heartbeat
from celery_sqs_visibility.delivery.hold.ledger import HORIZON_MARGIN_SECONDS, Ledger
from celery_sqs_visibility.delivery.model import Delete, Delivery, Hide, Release
from celery_sqs_visibility.errors import (
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import Extended, Facts, Lost, subscribe
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

TIMEOUT = 120
INTERVAL = 40.0


class SlowSQS(FakeSQS):
    """Its calls take time, on the clock; things may happen meanwhile."""

    def __init__(self, clock):
        super().__init__(clock)
        self._test_clock = clock
        self.seconds = 0.0
        self.meanwhile = lambda: None

    def change_visibility(self, queue_url, changes):
        result = super().change_visibility(queue_url, changes)
        self._test_clock.advance(self.seconds)
        self.meanwhile()
        return result


class World:
    """A ledger and the heartbeat that looks after it, on a clock that the test turns."""

    def __init__(self, visibility_timeout=TIMEOUT, interval=INTERVAL):
        self.timeout = visibility_timeout
        self.options = ReceiveOptions(visibility_timeout)
        self.clock = FakeClock()
        self.sqs = SlowSQS(self.clock)
        self.ledger = Ledger(visibility_timeout, interval)
        self.resumed = []
        self.heartbeat = Heartbeat(self.ledger, self.clock, lambda *what: self.resumed.append(what))

    def queue(self, name="q"):
        return Queue(name, self.sqs.create_queue(name, {}, {}), self.sqs)

    def hold(self, queue, count=1):
        """Receive that many messages, and hold them."""
        for _ in range(count):
            self.sqs.send(queue.url, OutgoingMessage("task"))
        now = self.clock.monotonic()
        deliveries = [
            Delivery(
                queue,
                message["ReceiptHandle"],
                Facts(queue.name, message["MessageId"], 1, 0),
                now,
                now + self.timeout,
                None,
            )
            for _ in range(0, count, 10)
            for message in self.sqs.receive(queue.url, min(10, count), 0, self.options)
        ]
        self.ledger.add(deliveries)
        return deliveries

    def beat_after(self, seconds):
        self.clock.advance(seconds)
        work_off(self.heartbeat.batch_threads)

    def extensions(self):
        """The batches asked for so far: `[[seconds, ...], ...]`."""
        return [
            [seconds for _, seconds in arguments["changes"]]
            for action, arguments in self.sqs.calls
            if action == "ChangeMessageVisibilityBatch"
        ]

    def visible(self, queue):
        """What another worker would get."""
        return self.sqs.receive(queue.url, 10, 0, self.options)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def queue(world):
    return world.queue()


@pytest.fixture
def events():
    seen = []
    end = subscribe(seen.append)
    yield seen
    end()


def test_a_held_message_stays_hidden(world, queue, events):
    (one,) = world.hold(queue)
    world.beat_after(TIMEOUT - INTERVAL)
    assert one.deadline == world.clock.monotonic() + TIMEOUT
    assert events == [Extended(one.facts, TIMEOUT)]
    world.clock.advance(TIMEOUT - 1)
    assert world.visible(queue) == []


def test_more_than_ten_take_several_requests(world, queue):
    world.hold(queue, 20)
    world.beat_after(TIMEOUT - INTERVAL)
    assert [len(batch) for batch in world.extensions()] == [10, 10]


def test_the_deadline_counts_from_before_the_call(world, queue):
    (one,) = world.hold(queue)
    world.sqs.seconds = 3
    world.clock.advance(TIMEOUT - INTERVAL)
    called = world.clock.monotonic()
    work_off(world.heartbeat.batch_threads)
    assert one.deadline == called + TIMEOUT


@pytest.mark.parametrize(
    "error", [UnavailableError("network"), ThrottledError("slow down"), RequestRefusedError("no")]
)
def test_a_failed_extension_is_tried_again_until_the_deadline(world, queue, events, error):
    (one,) = world.hold(queue)
    world.sqs.fail_next("ChangeMessageVisibilityBatch", error)
    world.beat_after(TIMEOUT - INTERVAL)
    assert events == []
    world.beat_after(INTERVAL / 2)
    assert events == [Extended(one.facts, TIMEOUT)]
    assert not one.lost


def test_a_batch_that_failed_in_part_is_tried_again_in_part(world, queue, events):
    first, second = world.hold(queue, 2)
    world.sqs.fail_next("ChangeMessageVisibilityBatch", ThrottledError("slow down"), position=0)
    world.beat_after(TIMEOUT - INTERVAL)
    assert events == [Extended(second.facts, TIMEOUT)]
    world.beat_after(INTERVAL / 2)
    assert Extended(first.facts, TIMEOUT) in events


def test_what_could_never_be_extended_is_lost_at_its_deadline_and_told_once(world, queue, events):
    (one,) = world.hold(queue)
    world.clock.advance(TIMEOUT - INTERVAL)
    while world.clock.monotonic() < one.deadline + 10:
        world.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("network"))
        world.beat_after(1)
    assert one.lost
    assert events == [Lost(one.facts, f"{DEADLINE_PASSED}: network")]


def test_a_refused_handle_is_lost_at_once(world, queue, events):
    (one,) = world.hold(queue)
    world.sqs.fail_next("ChangeMessageVisibilityBatch", ReceiptHandleInvalidError("gone"), position=0)
    world.beat_after(TIMEOUT - INTERVAL)
    assert one.lost
    assert events == [Lost(one.facts, "gone")]
    world.beat_after(INTERVAL)
    assert len(world.extensions()) == 1


def test_a_heartbeat_that_slept_too_long_extends_nothing_that_lapsed(world, queue, events):
    (one,) = world.hold(queue)
    world.beat_after(TIMEOUT + 1)
    assert world.extensions() == []
    assert events == [Lost(one.facts, DEADLINE_PASSED)]


def test_what_lapsed_while_another_queue_was_slow_is_lost_and_not_extended(world, queue, events):
    # SQS says yes to an extension on a stale handle: the local deadline is the truth.
    world.hold(queue)
    (late,) = world.hold(world.queue("other"))
    world.sqs.seconds = INTERVAL + 1
    world.beat_after(TIMEOUT - INTERVAL)
    assert len(world.extensions()) == 1
    work_off(world.heartbeat.batch_threads)
    assert late.lost
    assert Lost(late.facts, DEADLINE_PASSED) in events


def test_a_settlement_waits_for_the_extension_in_flight(world, queue):
    (one,) = world.hold(queue)
    during = []
    world.sqs.meanwhile = lambda: during.append((world.ledger.settle(one, Hide(5)), list(world.resumed)))
    world.beat_after(TIMEOUT - INTERVAL)
    assert during == [((True, False), [])]
    assert world.resumed == [(one, Hide(5))]


def test_a_settlement_is_resumed_too_when_the_extension_failed(world, queue):
    (one,) = world.hold(queue)
    world.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("network"), position=0)
    world.sqs.meanwhile = lambda: world.ledger.settle(one, Release())
    world.beat_after(TIMEOUT - INTERVAL)
    assert world.resumed == [(one, Release())]
    assert world.ledger.next_extension() is None


def test_a_settlement_that_cannot_be_resumed_leaves_nothing_as_being_extended(world, queue, caplog):
    one, *others = world.hold(queue, 3)
    world.heartbeat._resume = lambda *_: 1 / 0
    world.sqs.meanwhile = lambda: world.ledger.settle(one, Release())
    world.beat_after(TIMEOUT - INTERVAL)
    assert not any(delivery.extending for delivery in (one, *others))
    assert {delivery.deadline for delivery in others} == {world.clock.monotonic() + TIMEOUT}
    assert world.ledger.wait_for_extensions(0)
    assert "a settlement was lost, and its message comes back" in caplog.text


def test_a_bug_in_one_call_freezes_nobody_else(world, queue):
    (one,) = world.hold(queue)
    (other,) = world.hold(world.queue("other"))
    world.sqs.fail_next("ChangeMessageVisibilityBatch", RuntimeError("bug"))
    world.clock.advance(TIMEOUT - INTERVAL)
    with suppress(RuntimeError):  # the thread's loop logs it and goes on
        work_off(world.heartbeat.batch_threads)
    world.beat_after(INTERVAL / 2)
    assert not other.extending
    assert other.deadline > world.clock.monotonic() + INTERVAL
    assert world.ledger.settle(one, Delete()) == (True, True)


def test_a_task_of_thirteen_hours_keeps_its_message_to_the_horizon_and_is_told_lost(world, queue, events):
    (one,) = world.hold(queue)
    began = world.clock.monotonic()
    while world.clock.monotonic() < began + 13 * 3600:
        # A step of a second at least: that no beat follows another at once is a test of its own.
        world.beat_after(max(1.0, (world.ledger.next_extension() or 1e9) - world.clock.monotonic()))
        if one.lost:
            break
        assert world.visible(queue) == []
    *whole, last = [event.seconds for event in events if isinstance(event, Extended)]
    assert set(whole) == {TIMEOUT}
    assert last < TIMEOUT
    assert one.deadline == pytest.approx(began + VISIBILITY_HORIZON_SECONDS - HORIZON_MARGIN_SECONDS, abs=1)
    assert one.lost
    assert events[-1] == Lost(one.facts, HORIZON_REACHED)
    assert sum(isinstance(event, Lost) for event in events) == 1
    world.clock.advance(5)
    assert len(world.visible(queue)) == 1


def test_at_the_horizon_the_heartbeat_does_not_spin(world, queue):
    (one,) = world.hold(queue)
    one.deadline = one.horizon - HORIZON_MARGIN_SECONDS
    world.clock.advance(one.deadline - INTERVAL - world.clock.monotonic())
    beats = 0
    while not one.lost and beats < 1000:
        world.beat_after(max(0.0, world.ledger.next_extension() - world.clock.monotonic()))
        beats += 1
    assert one.lost
    assert beats < 200


def test_while_sqs_is_down_the_heartbeat_does_not_hammer_it(world, queue):
    (one,) = world.hold(queue)
    for _ in range(1000):
        world.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("connection refused"))
    beats = 0
    while not one.lost and beats < 1000:
        world.beat_after(max(0.0, world.ledger.next_extension() - world.clock.monotonic()))
        beats += 1
    assert one.lost
    assert beats < 200


@settings(max_examples=40)
@given(st.integers(60, 600), st.floats(0.1, 0.95))
def test_the_heartbeat_asks_no_more_often_than_it_must(visibility_timeout, part):
    world = World(visibility_timeout, interval := visibility_timeout * part)
    world.sqs.seconds = 0.01
    (one,) = world.hold(world.queue())
    until = world.clock.monotonic() + 5 * visibility_timeout
    needed = 5 * visibility_timeout / (visibility_timeout - interval)
    while (due := world.ledger.next_extension()) < until and len(world.extensions()) <= 2 * needed + 3:
        world.beat_after(max(0.0, due - world.clock.monotonic()))
    assert not one.lost
    assert len(world.extensions()) <= 2 * needed + 3


def test_the_thread_sleeps_until_it_is_told_of_something_that_is_due(world, queue):
    extended = threading.Event()
    world.sqs.meanwhile = extended.set
    world.heartbeat.batch_threads.stop()  # legal before the start
    world.heartbeat.batch_threads.start()
    world.heartbeat.batch_threads.start()
    try:
        world.clock.advance(-(TIMEOUT - INTERVAL))
        world.hold(queue)
        world.clock.advance(TIMEOUT - INTERVAL)
        world.heartbeat.notice()
        assert extended.wait(SOON)
    finally:
        world.heartbeat.batch_threads.stop()
        world.heartbeat.batch_threads.stop()


def test_ten_thousand_messages_share_full_batches_and_none_expires():
    world = World(visibility_timeout=60, interval=20.0)
    queue = world.queue()
    held = []
    for _ in range(1000):  # ten every 50 ms, and so over 50 seconds, with beats as they fall due
        held += world.hold(queue, 10)
        world.clock.advance(0.05)
        beat_if_due(world)
    until = world.clock.monotonic() + 5 * 60
    while world.clock.monotonic() < until:
        world.clock.advance(0.25)
        beat_if_due(world)
    sizes = [len(batch) for batch in world.extensions()]
    assert sum(sizes) / len(sizes) >= 9.5
    assert not any(delivery.lost for delivery in held)
    assert world.visible(queue) == []


def beat_if_due(world):
    if (world.ledger.next_extension() or 0) <= world.clock.monotonic():
        work_off(world.heartbeat.batch_threads)


class TestWhatEndsWhileItIsExtended:
    """An extension is in flight, and its delivery is settled, or replaced, meanwhile."""

    @pytest.fixture
    def run(self, world, queue):
        """One that is held, and a note of each time that its run was to be ended."""
        (one,) = world.hold(queue)
        world.ledger.start(one, world.clock.monotonic())
        ended = []
        one.on_lost = ended.append
        return one, ended

    @pytest.mark.parametrize("settlement", [Delete(), Hide(5)])
    @pytest.mark.parametrize("error", ["refused", "too late"])
    def test_the_end_of_a_run_that_is_over_is_not_asked_for(self, world, queue, run, settlement, error):
        one, ended = run
        if error == "refused":
            world.sqs.fail_next("ChangeMessageVisibilityBatch", ReceiptHandleInvalidError("gone"), position=0)
        else:  # its deadline passes while the batch of another queue is under way
            world.hold(world.queue("other"))
            world.sqs.seconds = INTERVAL + 1
        world.sqs.meanwhile = lambda: world.ledger.settle(one, settlement)
        world.beat_after(TIMEOUT - INTERVAL)
        assert ended == []

    def test_a_delete_does_not_wait_and_nothing_is_told_of_the_extension(self, world, queue, run, events):
        one, _ = run
        settled = []
        world.sqs.meanwhile = lambda: settled.append(world.ledger.settle(one, Delete()))
        world.beat_after(TIMEOUT - INTERVAL)
        assert settled == [(True, True)]
        assert world.resumed == []
        assert events == []

    def test_nor_of_its_refusal_since_sqs_has_deleted_it(self, world, queue, run, events):
        one, _ = run
        world.sqs.fail_next("ChangeMessageVisibilityBatch", ReceiptHandleInvalidError("deleted"), position=0)
        world.sqs.meanwhile = lambda: world.ledger.settle(one, Delete())
        world.beat_after(TIMEOUT - INTERVAL)
        assert events == []

    def test_what_waited_to_be_hidden_is_told_lost(self, world, queue, run, events):
        one, ended = run
        world.sqs.fail_next("ChangeMessageVisibilityBatch", ReceiptHandleInvalidError("gone"), position=0)
        world.sqs.meanwhile = lambda: world.ledger.settle(one, Hide(5))
        world.beat_after(TIMEOUT - INTERVAL)
        assert events == [Lost(one.facts, "gone")]
        assert world.resumed == [(one, Hide(5))]
        assert ended == []

    def test_a_run_whose_message_is_held_and_lost_is_to_be_ended(self, world, queue, run):
        one, ended = run
        world.sqs.fail_next("ChangeMessageVisibilityBatch", ReceiptHandleInvalidError("gone"), position=0)
        world.beat_after(TIMEOUT - INTERVAL)
        assert ended == [one]


def test_what_is_due_but_in_no_request_yet_is_settled_at_once(world, queue):
    # Thousands may be due while the first batches are under way.
    deliveries = world.hold(queue, 30)
    settled = []

    def meanwhile():
        if not settled:
            settled.extend(world.ledger.settle(one, Hide(5)) for one in deliveries[10:])

    world.sqs.meanwhile = meanwhile
    world.beat_after(TIMEOUT - INTERVAL)
    assert set(settled) == {(True, True)}
    assert [len(batch) for batch in world.extensions()] == [10]


@pytest.mark.parametrize("error", [UnavailableError("network"), ReceiptHandleInvalidError("gone")])
def test_a_logging_filter_that_raises_leaves_nothing_as_being_extended(world, queue, error):
    deliveries = world.hold(queue, 3)
    end = subscribe(lambda _: 1 / 0)
    for one in deliveries:
        one.on_lost = lambda _: 1 / 0
    for position in range(3):
        world.sqs.fail_next("ChangeMessageVisibilityBatch", error, position)
    with a_filter_that_raises(), suppress(RuntimeError):
        world.beat_after(TIMEOUT - INTERVAL)
    end()
    assert not any(one.extending for one in deliveries)
