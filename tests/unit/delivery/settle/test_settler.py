"""Settlements share requests, are tried again while it makes sense, and each has one end."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import factories
from support.clock import FakeClock
from support.factories import CHANGES, DELETES, TIMEOUT, a_filter_that_raises
from support.processes import SOON

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.core.batches import (
    DELETE_LINGER_WINDOWS,
    TOO_LATE,
    PendingSettlement,
    SettlementBatches,
)
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Why
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.settler import Settler
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ReceiptHandleInvalidError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.policy.backoff import MAX_PAUSE_SECONDS
from celery_sqs_visibility.policy.quotas import (
    BATCH_ENTRIES,
    HORIZON_MARGIN_SECONDS,
    VISIBILITY_HORIZON_SECONDS,
)

WINDOW = 0.02
STEP = 0.05  # by which tests turn the clock
NO_ANSWER = UnavailableError("network")
LOST = AnswerLostError("the connection was closed")
THROTTLED = ThrottledError("slow down")
VISIBILITY_CHANGES = pytest.mark.parametrize("settlement", [Hide(5), RELEASE, Hide(700, Why.PARKED)])
GONE = ReceiptHandleInvalidError("gone")


class World:
    """A settler whose batches the test sends, on a clock that the test turns."""

    def __init__(self, window=WINDOW):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.settled = []
        self.listener = lambda: None
        self.settler = Settler(
            SettlementBatches(window),
            self.note,
            CopyPermissions(self.clock),
            Pump(self.clock),
        )

    def note(self, ended, _now):
        self.settled += [(one.delivery, one.settlement, error) for one, error in ended]
        self.listener()

    def queue(self, name="q"):
        return factories.queue(self.sqs, name)

    def receive(self, queue, count=1):
        return factories.received(queue, count, self.clock)

    def fail(self, action, error, times=1, **position):
        for _ in range(times):
            self.sqs.fail_next(action, error, **position)

    def submit(self, deliveries, settlement):
        with self.settler.lane.lock:
            for delivery in deliveries:
                self.settler.batches.add(PendingSettlement(delivery, settlement, self.clock.monotonic()))
                self.settler.notice(self.clock.monotonic())

    def send_next(self, after=0.0):
        """Send what a thread would send then; `False` if nothing is due."""
        self.clock.advance(after)
        return self.settler.lane.send_next()

    def work_off(self):
        """Turn the clock until nothing is left to do."""
        while not self.settler.flush(0):
            self.clock.advance(STEP)
            while self.send_next():
                pass

    def batches(self, action):
        return factories.entries(self.sqs, action)


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize(("window", "count"), [(WINDOW, 10), (0, 1)], ids=["ten", "without a window"])
def test_a_full_batch_goes_at_once_in_one_request_and_without_a_window_everything(window, count):
    world = World(window)
    world.submit(world.receive(world.queue(), count), Delete())
    assert world.send_next()
    assert [len(batch) for batch in world.batches(DELETES)] == [count]
    assert world.settler.flush(0)


@pytest.mark.parametrize(
    ("name", "settlement", "count", "windows"),
    [
        ("q", Delete(), 1, 1),
        ("q", Delete(), 3, DELETE_LINGER_WINDOWS),
        ("q.fifo", Delete(), 3, 1),
        ("q", Hide(5), 3, 1),
    ],
    ids=["alone", "among others", "among others, and its group waits", "a delay counts from then"],
)
def test_fewer_than_ten_linger(world, name, settlement, count, windows):
    world.submit(world.receive(world.queue(name), count), settlement)
    assert not world.send_next()
    assert not world.send_next(after=WINDOW * (windows - 0.5))
    assert world.send_next(after=WINDOW / 2)
    assert [len(batch) for batch in world.batches(DELETES) + world.batches(CHANGES)] == [count]


def test_the_first_of_a_batch_sets_the_time(world, queue):
    first, second = world.receive(queue, 2)
    world.submit([first], Hide(5))
    world.clock.advance(WINDOW * 0.9)
    world.submit([second], Hide(5))
    assert world.send_next(after=WINDOW * 0.2)
    assert world.batches(CHANGES) == [[(first.handle, 5), (second.handle, 5)]]


def test_visibility_changes_share_requests_and_deletes_have_their_own(world, queue):
    one, two, three, four = world.receive(queue, 4)
    settlements = [(one, Hide(5)), (two, RELEASE), (three, Hide(700, Why.PARKED)), (four, Delete())]
    for delivery, settlement in settlements:
        world.submit([delivery], settlement)
    world.work_off()
    assert world.batches(CHANGES) == [[(one.handle, 5), (two.handle, 0), (three.handle, 700)]]
    assert world.batches(DELETES) == [[four.handle]]
    assert set(world.settled) == {(one, settlement, None) for one, settlement in settlements}


def test_queues_do_not_share_requests_and_a_busy_one_does_not_keep_others_waiting(world, queue):
    other = world.queue("other")
    world.submit(world.receive(queue, 25), Delete())
    world.submit(world.receive(other, 10), Delete())
    while world.send_next():
        pass
    assert [arguments["queue_url"] for arguments in factories.requests(world.sqs, DELETES)] == [
        queue.url,
        other.url,
        queue.url,
    ]


@pytest.mark.parametrize(
    ("error", "position"), [(THROTTLED, 1), (NO_ANSWER, None), (RuntimeError("bug"), None)]
)
def test_what_failed_of_a_batch_is_tried_again(world, queue, error, position):
    deliveries = world.receive(queue, 3)
    handles = [one.handle for one in deliveries]
    world.fail(DELETES, error, position=position)
    world.submit(deliveries, Delete())
    world.work_off()
    assert world.batches(DELETES) == [handles, handles if position is None else [handles[position]]]
    assert [error for _, _, error in world.settled] == [None] * 3
    assert factories.left(queue) == 0


def test_a_retry_comes_after_a_pause_holds_up_no_other_and_shares_whatever_batch_there_is(world, queue):
    bad, good, late = world.receive(queue, 3)
    world.fail(DELETES, NO_ANSWER)
    world.submit([bad], Delete())
    world.send_next(after=WINDOW)
    world.submit([good], RELEASE)
    world.send_next(after=WINDOW)
    assert world.settled == [(good, RELEASE, None)]
    assert not world.send_next()
    world.clock.advance(MAX_PAUSE_SECONDS)
    world.submit([late], Delete())
    world.work_off()
    assert [sorted(batch) for batch in world.batches(DELETES)[1:]] == [sorted([bad.handle, late.handle])]


@pytest.mark.parametrize(
    ("settlement", "action"), [(Hide(5), CHANGES), (RELEASE, CHANGES), (Delete(), DELETES)]
)
def test_a_refused_handle_is_not_tried_again(world, queue, settlement, action):
    (one,) = world.receive(queue)
    world.fail(action, GONE, position=0)
    world.submit([one], settlement)
    world.work_off()
    assert len(world.batches(action)) == 1
    assert world.settled == [(one, settlement, GONE)]


@pytest.mark.parametrize(
    ("errors", "deleted"),
    [([LOST], True), ([LOST, THROTTLED], True), ([THROTTLED], False), ([NO_ANSWER, THROTTLED], False)],
)
def test_a_handle_that_is_refused_after_an_answer_was_lost_was_deleted_and_after_other_errors_not(
    world, queue, errors, deleted
):
    (one,) = world.receive(queue)
    for error in errors:
        world.fail(DELETES, error)
    world.fail(DELETES, GONE, position=0)
    world.submit([one], Delete())
    world.work_off()
    assert len(world.batches(DELETES)) == len(errors) + 1
    assert world.settled == [(one, Delete(), None if deleted else GONE)]


@pytest.mark.parametrize(
    ("settlement", "action", "error"), [(Delete(), DELETES, LOST), (RELEASE, CHANGES, NO_ANSWER)]
)
def test_a_fifo_queue_that_refuses_a_second_try_may_have_the_message_still(world, settlement, action, error):
    """Since its visibility timeout has passed, as SQS sees it; then the first try has not reached it."""
    (one,) = world.receive(world.queue("q.fifo"))
    world.fail(action, error)
    world.fail(action, GONE, position=0)
    world.submit([one], settlement)
    world.work_off()
    assert world.settled == [(one, settlement, GONE)]


def test_a_settlement_that_keeps_failing_ends_at_the_deadline(world, queue):
    (one,) = world.receive(queue)
    world.fail(CHANGES, NO_ANSWER, times=5000)
    world.submit([one], Hide(5))
    world.work_off()
    assert one.deadline - MAX_PAUSE_SECONDS - 1 <= world.clock.monotonic() <= one.deadline + STEP
    ((settled, settlement, error),) = world.settled
    assert (settled, settlement) == (one, Hide(5))
    assert error in (NO_ANSWER, TOO_LATE), "of the last try, which may have come too late"
    assert len(world.batches(CHANGES)) < TIMEOUT * 2


@VISIBILITY_CHANGES
def test_no_visibility_is_changed_after_the_deadline(world, queue, settlement):
    # Another worker may have the message by now and would lose it, if SQS takes the old handle.
    (one,) = world.receive(queue)
    world.fail(CHANGES, UnavailableError("its answer was lost"))
    world.submit([one], settlement)
    assert world.send_next(after=TIMEOUT - 0.5)
    world.clock.advance(0.5)
    world.work_off()
    assert len(world.batches(CHANGES)) == 1
    ((settled, _, error),) = world.settled
    assert settled is one
    assert "its visibility timeout ran out" in str(error)


@pytest.mark.parametrize(
    ("settlement", "pause", "tries"),
    [(RELEASE, 0, 1), (Hide(5), 5, 1), (Hide(700, Why.PARKED), 0, 2), (Hide(5), 0, 2), (Delete(), 5, 2)],
    ids=["released", "hidden, and back", "parked", "hidden", "deleted"],
)
def test_what_may_be_done_is_not_done_to_the_next_worker(world, queue, settlement, pause, tries):
    """SQS did it, and its answer was lost: an old handle of a standard queue still acts."""
    action = DELETES if settlement == Delete() else CHANGES
    (one,) = world.receive(queue)
    world.sqs.fail_next(action, LOST, carried_out=True)
    world.submit([one], settlement)
    assert world.send_next(after=WINDOW)
    world.clock.advance(pause)
    next_worker = queue.sqs.receive(queue.url, 1, 0, factories.EVERYTHING)
    world.work_off()
    assert len(world.batches(action)) == tries
    ((_, _, error),) = world.settled
    assert (error is None) == (tries > 1)
    assert bool(next_worker) == (tries == 1)
    assert queue.sqs.receive(queue.url, 1, 0, factories.EVERYTHING) == [], "the next worker has it alone"


@pytest.mark.parametrize(("error", "tries"), [(NO_ANSWER, 2), (THROTTLED, 2), (LOST, 1)])
def test_a_release_is_sent_again_where_it_certainly_was_not_done(world, queue, error, tries):
    (one,) = world.receive(queue)
    world.fail(CHANGES, error)
    world.submit([one], RELEASE)
    world.work_off()
    assert len(world.batches(CHANGES)) == tries
    assert world.settled == [(one, RELEASE, None if tries > 1 else error)]


@VISIBILITY_CHANGES
def test_nor_for_the_first_time_where_the_threads_are_too_late(world, queue, settlement):
    late, early = world.receive(queue, 2)
    early.deadline += TIMEOUT
    world.submit([late, early], settlement)
    world.send_next(after=TIMEOUT)
    assert [[handle for handle, _ in batch] for batch in world.batches(CHANGES)] == [[early.handle]]
    assert [(one, error is None) for one, _, error in world.settled] == [(early, True), (late, False)]
    assert world.settler.flush(0)


@pytest.mark.parametrize(("extended", "failures", "tries"), [(TIMEOUT, 3, 4), (-1, 1, 1)])
def test_a_delete_is_tried_until_the_latest_deadline_and_once_after_it(
    world, queue, extended, failures, tries
):
    (one,) = world.receive(queue)
    world.fail(DELETES, NO_ANSWER, times=failures)
    world.clock.advance(TIMEOUT - 0.01)
    world.submit([one], Delete())
    one.deadline += extended
    world.work_off()
    assert len(world.batches(DELETES)) == tries


def test_neither_a_broken_logging_filter_nor_listener_costs_a_settlement(world, queue):
    world.listener = lambda: 1 / 0
    deliveries = world.receive(queue, 3)
    world.fail(CHANGES, THROTTLED)
    world.submit(deliveries, Hide(5))
    with a_filter_that_raises():
        world.work_off()
    assert world.settled == [(one, Hide(5), None) for one in deliveries]


@given(
    st.integers(0, VISIBILITY_HORIZON_SECONDS),
    st.integers(0, VISIBILITY_HORIZON_SECONDS - 1),
    st.sampled_from(Why),
)
def test_a_hide_is_clamped_to_what_is_left_of_the_twelve_hours(seconds, elapsed, why):
    world = World(window=0)
    (one,) = world.receive(world.queue())
    world.clock.advance(elapsed)
    one.deadline = world.clock.monotonic() + TIMEOUT
    world.submit([one], Hide(seconds, why))
    world.send_next()
    asked = max(0, min(seconds, VISIBILITY_HORIZON_SECONDS - elapsed - HORIZON_MARGIN_SECONDS))
    assert world.batches(CHANGES) == [[(one.handle, asked)]]
    assert world.settled == [(one, Hide(asked, why), None)]  # SQS did not refuse, and the event says the same


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([Delete(), Hide(5), RELEASE])), max_size=80))
@settings(max_examples=40)
def test_each_settlement_is_done_once_and_no_batch_is_too_large(submissions):
    world = World()
    queues = [world.queue(name) for name in "abc"]
    submitted = []
    for place, settlement in submissions:
        submitted += world.receive(queues[place])
        world.submit(submitted[-1:], settlement)
        world.send_next()
    world.work_off()
    assert sorted(map(id, submitted)) == sorted(id(one) for one, _, _ in world.settled)
    assert all(len(batch) <= BATCH_ENTRIES for batch in world.batches(DELETES) + world.batches(CHANGES))


def test_a_flush_sends_what_lingers():
    world = World(window=5)  # which never passes: nobody turns the clock
    queue = world.queue()
    assert world.settler.flush(0), "nothing is done at once"
    world.settler.lane.start()
    try:
        world.submit(world.receive(queue, 3), Delete())
        assert world.settler.flush(SOON)
    finally:
        world.settler.lane.stop()
    assert factories.left(queue) == 0


def test_a_stopped_settler_finishes_what_it_was_given():
    world = World(window=0)
    queue = world.queue()
    world.submit(world.receive(queue, 25), Delete())
    for act in ("stop", "start", "start", "stop"):
        getattr(world.settler.lane, act)()
    assert world.settler.flush(SOON)
    assert factories.left(queue) == 0


def test_an_outage_is_logged_once_for_each_kind_of_request_and_so_is_its_end(world, queue, caplog):
    deliveries = world.receive(queue, 30)
    for action in (DELETES, CHANGES):
        world.fail(action, THROTTLED, times=3)
    world.submit(deliveries[:15], Delete())
    world.submit(deliveries[15:], Hide(9))
    world.work_off()
    assert sorted(re.split(":| after", text)[0] for text in caplog.messages) == [
        "can delete messages again",
        "can hide or release messages again",
        "cannot delete messages",
        "cannot hide or release messages",
    ]
