"""What is held stays hidden: up to the horizon, in full batches, and honestly told when it is lost."""

import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import factories
from support.clock import FakeClock
from support.factories import CHANGES, TIMEOUT, a_filter_that_raises, every_queue
from support.lanes import work_off
from support.processes import SOON

from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.core.held import ANSWERED_LATE, DEADLINE_PASSED, HORIZON_REACHED, Held
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide
from celery_sqs_visibility.delivery.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import Extended, ExtensionEnded, Lost, subscribe
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS

INTERVAL = 40.0
NO_ANSWER = UnavailableError("network")
GONE = ReceiptHandleInvalidError("gone")


class World:
    """What is held and the heartbeat that looks after it, on a clock that the test turns."""

    def __init__(self, visibility_timeout=TIMEOUT, interval=INTERVAL):
        self.timeout = visibility_timeout
        self.clock = FakeClock()
        self.sqs = factories.BusySQS(self.clock)
        self.core = Held(every_queue(visibility_timeout, interval), visibility_timeout)
        self.resumed = []
        self.heartbeat = Heartbeat(self.core, self.resume, Pump(self.clock))

    def resume(self, *what):
        self.resumed.append(what)

    def queue(self, name="q"):
        return factories.queue(self.sqs, name)

    def hold(self, queue, count=1):
        """Receive that many messages, and hold them."""
        deliveries = factories.received(queue, count, self.clock, timeout=self.timeout)
        self.core.receive(deliveries, self.clock.monotonic())
        return deliveries

    def settle(self, one, settlement):
        """Whether it was held, and whether the settlement need not wait."""
        return self.core.settle(one, settlement, self.clock.monotonic()), one.waiting is None

    def fail(self, error, position=None):
        self.sqs.fail_next(CHANGES, error, position)

    def calls_take(self, seconds):
        """On the clock."""
        self.sqs.meanwhile = lambda: self.clock.advance(seconds)

    def beat_after(self, seconds):
        self.clock.advance(seconds)
        work_off(self.heartbeat.lane)

    def beat_when_due(self, at_least=0.0):
        self.beat_after(max(at_least, (self.core.next_extension() or 1e9) - self.clock.monotonic()))

    def extensions(self):
        """The batches asked for so far."""
        return factories.entries(self.sqs, CHANGES)

    def visible(self, queue):
        """What another worker would get."""
        return self.sqs.receive(queue.url, 10, 0, factories.EVERYTHING)


@pytest.fixture
def world():
    return World()


def test_a_held_message_stays_hidden_and_its_deadline_counts_from_before_the_call(world, queue, events):
    (one,) = world.hold(queue)
    world.calls_take(3)
    world.beat_after(TIMEOUT - INTERVAL)
    assert one.deadline == world.clock.monotonic() - 3 + TIMEOUT
    assert events.seen == [Extended(one.facts, TIMEOUT)]
    world.clock.advance(TIMEOUT - 3 - 1)
    assert world.visible(queue) == []


@pytest.mark.parametrize(
    ("error", "position"),
    [
        (NO_ANSWER, None),
        (ThrottledError("slow down"), None),
        (RequestRefusedError("no"), None),
        (ThrottledError("slow down"), 0),
    ],
)
def test_what_failed_of_a_batch_is_tried_again(world, queue, events, error, position):
    first, second = world.hold(queue, 2)
    one_extended, other_extended = (Extended(one.facts, TIMEOUT) for one in (first, second))
    world.fail(error, position)
    world.beat_after(TIMEOUT - INTERVAL)
    at_once = [] if position is None else [other_extended]
    assert events.seen == at_once
    world.beat_after(INTERVAL / 2)
    assert events.seen == [*at_once, one_extended, other_extended]
    assert not first.lost


@pytest.mark.parametrize(("left", "urgent"), [(6.2, True), (6.25, False), (20, False)])
def test_an_extension_of_what_comes_back_soon_gives_up_a_silent_request_early(left, urgent):
    world = World(visibility_timeout=30, interval=20)
    world.hold(world.queue())
    world.beat_after(30 - left)
    assert world.sqs.urgent == [urgent]


def test_after_one_that_was_cut_off_the_next_waits_for_longer_until_sqs_is_prompt():
    world = World(visibility_timeout=30, interval=25)
    world.hold(world.queue())
    world.fail(AnswerLostError("no answer"))
    world.beat_after(30 - 6)
    world.calls_take(1.7)
    world.beat_when_due()
    world.calls_take(0.1)
    world.beat_after(30 - 6)
    world.beat_after(30 - 6)
    assert world.sqs.urgent == [True, False, False, True]


def test_what_could_never_be_extended_is_lost_at_its_deadline_and_told_once(world, queue, events):
    (one,) = world.hold(queue)
    world.clock.advance(TIMEOUT - INTERVAL)
    while world.clock.monotonic() < one.deadline + 10:
        world.fail(NO_ANSWER)
        world.beat_after(1)
    assert one.lost
    assert events.seen == [Lost(one.facts, f"{DEADLINE_PASSED}: network")]


def test_a_refused_handle_is_lost_at_once_and_its_run_is_to_be_ended(world, queue, events):
    (one,) = world.hold(queue)
    ended = []
    one.on_lost = ended.append
    world.fail(GONE, 0)
    world.beat_after(TIMEOUT - INTERVAL)
    assert one.lost
    assert ended == [one.handle]
    assert events.seen == [Lost(one.facts, "gone")]
    world.beat_after(INTERVAL)
    assert len(world.extensions()) == 1


def test_what_lapsed_while_another_queue_was_slow_is_lost_and_not_extended(world, queue, events):
    # SQS says yes to an extension on a stale handle: the local deadline is the truth.
    (slow,) = world.hold(queue)
    (late,) = world.hold(world.queue("other"))
    world.calls_take(INTERVAL + 1)
    world.beat_after(TIMEOUT - INTERVAL)
    assert len(world.extensions()) == 1
    work_off(world.heartbeat.lane)
    assert late.lost
    assert events.of(Lost) == [Lost(slow.facts, ANSWERED_LATE), Lost(late.facts, DEADLINE_PASSED)]


@pytest.mark.parametrize("late", LateChange)
@pytest.mark.parametrize("reaches_sqs", ["in time", "late"])
def test_an_extension_that_is_answered_after_the_deadline_proves_nothing(
    world, queue, events, late, reaches_sqs
):
    (one,) = world.hold(queue)
    world.sqs.late_change = late
    if reaches_sqs == "in time":
        world.calls_take(INTERVAL + 1)
    else:
        change = world.sqs.change_visibility
        world.sqs.change_visibility = lambda *job, **how: (
            world.clock.advance(INTERVAL + 1),
            change(*job, **how),
        )[1]
    world.beat_after(TIMEOUT - INTERVAL)
    assert one.lost
    assert one.deadline <= world.clock.monotonic(), "no visibility change is sent any more"
    assert [type(event) for event in events.seen] == [Lost]
    world.beat_after(TIMEOUT)
    assert len(world.extensions()) == 1


@pytest.mark.parametrize("settlement", [Hide(5), RELEASE])
@pytest.mark.parametrize("error", [None, NO_ANSWER], ids=["granted", "failed"])
def test_a_settlement_waits_for_the_extension_in_flight_however_that_ends(world, queue, settlement, error):
    (one,) = world.hold(queue)
    if error:
        world.fail(error, 0)
    during = []
    world.sqs.meanwhile = lambda: during.append((world.settle(one, settlement), list(world.resumed)))
    world.beat_after(TIMEOUT - INTERVAL)
    assert during == [((True, False), [])]
    assert world.resumed == [(one, settlement)]
    assert world.core.next_extension() is None


@pytest.mark.parametrize(
    ("ending", "settlement", "told"),
    [
        ("granted", Delete(), []),
        ("refused", Delete(), []),  # since SQS has deleted it
        ("refused", Hide(5), [(Lost, "gone")]),
        ("late", Delete(), []),
        ("late", Hide(5), [(Lost, ANSWERED_LATE)]),
    ],
)
def test_of_what_ends_while_it_is_extended_a_deletion_hides_all_and_no_run_is_ended(
    world, queue, events, ending, settlement, told
):
    (one,) = world.hold(queue)
    world.core.begin(one, world.clock.monotonic())
    settled, ended = [], []
    one.on_lost = ended.append
    if ending == "refused":
        world.fail(GONE, 0)

    def meanwhile():
        settled.append(world.settle(one, settlement))
        if ending == "late":
            world.clock.advance(INTERVAL + 1)

    world.sqs.meanwhile = meanwhile
    world.beat_after(TIMEOUT - INTERVAL)
    assert settled == [(True, settlement == Delete())], "a deletion does not wait"
    assert world.resumed == ([] if settlement == Delete() else [(one, settlement)])
    assert events.seen == [kind(one.facts, what) for kind, what in told]
    assert ended == []


def test_a_settlement_that_cannot_be_resumed_leaves_nothing_as_being_extended(world, queue, caplog):
    one, *others = world.hold(queue, 3)
    world.resumed = None  # there is a bug
    world.sqs.meanwhile = lambda: world.settle(one, RELEASE)
    world.beat_after(TIMEOUT - INTERVAL)
    assert not any(delivery.extending for delivery in (one, *others))
    assert {delivery.deadline for delivery in others} == {world.clock.monotonic() + TIMEOUT}
    assert world.core.postponed == 0
    assert "a settlement was lost, and its message comes back" in caplog.text


def test_a_bug_in_one_call_freezes_nobody_else(world, queue):
    (one,) = world.hold(queue)
    (other,) = world.hold(world.queue("other"))
    world.fail(RuntimeError("bug"))
    world.clock.advance(TIMEOUT - INTERVAL)
    with suppress(RuntimeError):  # the thread's loop logs it and goes on
        work_off(world.heartbeat.lane)
    world.beat_after(INTERVAL / 2)
    assert not other.extending
    assert other.deadline > world.clock.monotonic() + INTERVAL
    assert world.settle(one, Delete()) == (True, True)


def test_a_task_of_thirteen_hours_keeps_its_message_to_the_horizon_and_is_told_lost(world, queue, events):
    (one,) = world.hold(queue)
    began = world.clock.monotonic()
    while world.clock.monotonic() < began + 13 * 3600:
        # A step of a second at least: that no beat follows another at once is a test of its own.
        world.beat_when_due(at_least=1.0)
        if one.lost:
            break
        assert world.visible(queue) == []
    *whole, last = [event.seconds for event in events.of(Extended)]
    assert set(whole) == {TIMEOUT}
    assert last < TIMEOUT
    assert one.deadline == pytest.approx(began + VISIBILITY_HORIZON_SECONDS - HORIZON_MARGIN_SECONDS, abs=1)
    assert one.lost
    assert events.seen[-1] == Lost(one.facts, HORIZON_REACHED)
    assert len(events.of(Lost)) == 1
    world.clock.advance(5)
    assert len(world.visible(queue)) == 1


@pytest.mark.parametrize("why", ["the horizon is reached", "SQS is down"])
def test_the_heartbeat_does_not_spin(world, queue, why):
    (one,) = world.hold(queue)
    if why == "SQS is down":
        for _ in range(1000):
            world.fail(UnavailableError("connection refused"))
    else:
        one.deadline = one.horizon - HORIZON_MARGIN_SECONDS
        world.clock.advance(one.deadline - INTERVAL - world.clock.monotonic())
    beats = 0
    while not one.lost and beats < 1000:
        world.beat_when_due()
        beats += 1
    assert one.lost
    assert beats < 200


@pytest.mark.parametrize("seconds", [TIMEOUT, 600])
def test_what_its_task_had_hidden_for_long_is_extended_beyond_that_though_others_share_its_requests(
    world, queue, seconds
):
    long, other = world.hold(queue, 2)
    world.core.request_extension(long, world.clock.monotonic() + seconds, world.clock.monotonic())
    until = world.clock.monotonic() + 5 * seconds
    while world.clock.monotonic() < until:
        world.beat_when_due()
    assert not any(each.lost for each in (long, other))
    assert len(world.extensions()) < 60


@settings(max_examples=40)
@given(st.integers(60, 600), st.floats(0.1, 0.95))
def test_the_heartbeat_asks_no_more_often_than_it_must(visibility_timeout, part):
    world = World(visibility_timeout, interval := visibility_timeout * part)
    world.calls_take(0.01)
    (one,) = world.hold(world.queue())
    until = world.clock.monotonic() + 5 * visibility_timeout
    needed = 5 * visibility_timeout / (visibility_timeout - interval)
    while world.core.next_extension() < until and len(world.extensions()) <= 2 * needed + 3:
        world.beat_when_due()
    assert not one.lost
    assert len(world.extensions()) <= 2 * needed + 3


def test_the_thread_sleeps_until_it_is_told_of_something_that_is_due(world, queue):
    extended = threading.Event()
    world.sqs.meanwhile = extended.set
    world.heartbeat.lane.stop()  # legal before the start
    world.heartbeat.lane.start()
    world.heartbeat.lane.start()
    try:
        world.clock.advance(-(TIMEOUT - INTERVAL))
        world.hold(queue)
        world.clock.advance(TIMEOUT - INTERVAL)
        with world.heartbeat.lane.lock:
            world.heartbeat.notice()
        assert extended.wait(SOON)
    finally:
        world.heartbeat.lane.stop()
        world.heartbeat.lane.stop()


@pytest.mark.slow("ten thousand messages")
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
    if (world.core.next_extension() or 0) <= world.clock.monotonic():
        work_off(world.heartbeat.lane)


def test_what_is_due_but_in_no_request_yet_is_settled_at_once(world, queue):
    # Thousands may be due while the first batches are under way.
    deliveries = world.hold(queue, 30)
    settled = []

    def meanwhile():
        if not settled:
            settled.extend(world.settle(one, Hide(5)) for one in deliveries[10:])

    world.sqs.meanwhile = meanwhile
    world.beat_after(TIMEOUT - INTERVAL)
    assert set(settled) == {(True, True)}
    assert [len(batch) for batch in world.extensions()] == [10]


@pytest.mark.parametrize("error", [NO_ANSWER, GONE])
def test_a_logging_filter_that_raises_leaves_nothing_as_being_extended(world, queue, error):
    deliveries = world.hold(queue, 3)
    end = subscribe(lambda _: 1 / 0)
    for one in deliveries:
        one.on_lost = lambda _: 1 / 0
    for position in range(3):
        world.fail(error, position)
    with a_filter_that_raises(), suppress(RuntimeError):
        world.beat_after(TIMEOUT - INTERVAL)
    end()
    assert not any(one.extending for one in deliveries)


@pytest.mark.parametrize(("pause", "late"), [(0.0, 1.0), (TIMEOUT - INTERVAL + 7, 8.0)])
def test_how_late_an_extension_was_is_measured_from_when_it_was_due_to_its_answer(pause, late):
    world, heard = World(), []
    world.hold(world.queue())
    world.calls_take(1)
    end = subscribe(heard.append, ExtensionEnded)
    world.beat_when_due(pause)
    end()
    assert heard == [ExtensionEnded("q", late)]
