"""Settlements share requests, are retried while it makes sense, and no dead letter is deleted unsent."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import FakeClock
from support.logs import a_filter_that_raises
from support.processes import SOON

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Delivery, Hide, Park, Release
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settle.pending import DELETE_LINGER_WINDOWS, PendingSettlement
from celery_sqs_visibility.delivery.settle.settler import Settler
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.policy.backoff import LONGEST_PAUSE
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN, VISIBILITY_HORIZON

TIMEOUT = 120
WINDOW = 0.02
STEP = 0.05  # by which tests turn the clock
RECEIVE = ReceiveOptions(visibility_timeout=TIMEOUT, system_attributes=("All",))
DELETES = "DeleteMessageBatch"
CHANGES = "ChangeMessageVisibilityBatch"
LETTER = DeadLetter("broken", "the body", otherwise=Hide(9))


class World:
    """A settler whose turns the test takes, on a clock that the test turns."""

    def __init__(self, window=WINDOW):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.settled = []
        self.redrive = RedriveBook()
        self.dead_letters = DeadLetters(self.redrive)
        self.settler = Settler(window, self.clock, self.note, self.dead_letter)

    def note(self, delivery, settlement, error, _now):
        self.settled.append((delivery, settlement, error))

    def dead_letter(self, delivery, letter):
        sent = self.dead_letters.send(delivery, letter)
        self.settler.submit(delivery, Delete() if sent else letter.otherwise)

    def queue(self, name="q", attributes=None):
        return Queue(name, self.sqs.create_queue(name, attributes or {}, {}), self.sqs)

    def receive(self, queue, count=1):
        for number in range(count):
            group = {"group_id": str(number), "deduplication_id": f"{number}"} if queue.fifo else {}
            self.sqs.send(queue.url, OutgoingMessage("task", **group))
        now = self.clock.monotonic()
        return [
            Delivery(
                queue,
                message["ReceiptHandle"],
                Facts(queue.name, message["MessageId"], 1, 0, "tasks.add", "id-1", received=1_700_000_000),
                now,
                now + TIMEOUT,
                None,
            )
            for _ in range(0, count, 10)
            for message in self.sqs.receive(queue.url, min(count, 10), 0, RECEIVE)
        ]

    def submit(self, deliveries, settlement):
        for delivery in deliveries:
            self.settler.submit(delivery, settlement)

    def turn(self):
        """What a thread does that finds the time as it is; whether there was anything to do."""
        return self.settler.batch_threads.send_next()

    def work_off(self, step=STEP):
        """Turn the clock until nothing is left to do."""
        while not self.done:
            self.clock.advance(step)
            while self.turn():
                pass

    @property
    def done(self):
        return self.settler.flush(0)

    def batches(self, action):
        key = "handles" if action == DELETES else "changes"
        return [arguments[key] for name, arguments in self.sqs.calls if name == action]

    def left(self, queue):
        """How many messages are in the queue, visible or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return sum(map(int, self.sqs.queue_attributes(queue.url, names).values()))

    def count(self, action):
        return sum(name == action for name, _ in self.sqs.calls)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def queue(world):
    return world.queue()


@pytest.fixture
def graves(world):
    return world.queue("graves")


@pytest.fixture
def mortal(world, graves):
    """A queue with a dead-letter queue, of which the redrive book knows."""
    arn = world.sqs.queue_attributes(graves.url, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    queue = world.queue("mortal", {"RedrivePolicy": policy})
    world.redrive.get(queue, world.clock.monotonic())
    return queue


def test_ten_go_at_once_in_one_request(world, queue):
    world.submit(world.receive(queue, 10), Delete())
    assert world.turn()
    assert [len(batch) for batch in world.batches(DELETES)] == [10]
    assert world.done


@pytest.mark.parametrize(
    ("name", "settlement", "count", "windows"),
    [
        ("q", Delete(), 1, 1),
        ("q", Delete(), 3, DELETE_LINGER_WINDOWS),
        ("q.fifo", Delete(), 3, 1),
        ("q", Hide(5), 3, 1),
    ],
    ids=["alone", "in company", "in company, and its group waits", "a delay counts from then"],
)
def test_fewer_than_ten_wait_for_company(world, name, settlement, count, windows):
    queue = world.queue(name, {"FifoQueue": "true"} if name.endswith(".fifo") else None)
    world.submit(world.receive(queue, count), settlement)
    assert not world.turn()
    world.clock.advance(WINDOW * (windows - 0.5))
    assert not world.turn()
    world.clock.advance(WINDOW / 2)
    assert world.turn()
    assert [len(batch) for batch in world.batches(DELETES) + world.batches(CHANGES)] == [count]


def test_the_first_of_a_batch_sets_the_time(world, queue):
    first, second = world.receive(queue, 2)
    world.submit([first], Hide(5))
    world.clock.advance(WINDOW * 0.9)
    world.submit([second], Hide(5))
    world.clock.advance(WINDOW * 0.2)
    assert world.turn()
    assert world.batches(CHANGES) == [[(first.handle, 5), (second.handle, 5)]]


def test_without_a_window_everything_goes_at_once():
    world = World(window=0)
    world.submit(world.receive(world.queue()), Delete())
    assert world.turn()


def test_a_thread_takes_what_is_ready_without_waiting(world, queue):
    world.submit(world.receive(queue, 10), Delete())
    batch = world.settler.take(world.clock.monotonic())
    assert (batch.origin.queue, batch.origin.kind, len(batch)) == (queue, Delete, 10)


def test_a_signal_handler_may_settle_while_something_is_settled(world, queue):
    one, two = world.receive(queue, 2)

    class Interrupted(deque):
        def append(self, job):
            super().append(job)
            if job.delivery is one:
                world.submit([two], Delete())

    world.settler._pending(PendingSettlement(one, Delete(), 0)).settlements = Interrupted()
    world.submit([one], Delete())
    world.work_off()
    assert world.left(queue) == 0


def test_everything_that_sets_the_visibility_shares_requests(world, queue):
    one, two, three = world.receive(queue, 3)
    world.submit([one], Hide(5))
    world.submit([two], Release())
    world.submit([three], Park(700))
    world.work_off()
    assert world.batches(CHANGES) == [[(one.handle, 5), (two.handle, 0), (three.handle, 700)]]


def test_deletes_and_visibility_changes_do_not_share_requests(world, queue):
    one, two = world.receive(queue, 2)
    world.submit([one], Delete())
    world.submit([two], Release())
    world.work_off()
    assert world.count(DELETES) == world.count(CHANGES) == 1


def test_queues_do_not_share_requests(world, queue):
    world.submit(world.receive(queue, 5) + world.receive(world.queue("other"), 5), Delete())
    world.work_off()
    assert [len(batch) for batch in world.batches(DELETES)] == [5, 5]


def test_a_busy_queue_does_not_keep_the_others_waiting(world, queue):
    other = world.queue("other")
    world.submit(world.receive(queue, 30), Delete())
    world.submit(world.receive(other, 10), Delete())
    urls = []
    while world.turn():
        urls.append(world.sqs.calls[-1][1]["queue_url"])
    assert urls.index(other.url) == 1


def test_the_end_of_every_job_is_told(world, queue):
    one, two = world.receive(queue, 2)
    world.submit([one], Delete())
    world.submit([two], Hide(5))
    world.work_off()
    assert sorted(world.settled, key=lambda end: end[0] is two) == [
        (one, Delete(), None),
        (two, Hide(5), None),
    ]


def test_a_batch_that_failed_in_part_is_tried_again_in_part(world, queue):
    deliveries = world.receive(queue, 3)
    world.sqs.fail_next(DELETES, ThrottledError("slow down"), position=1)
    world.submit(deliveries, Delete())
    world.work_off()
    assert world.batches(DELETES) == [[one.handle for one in deliveries], [deliveries[1].handle]]
    assert [error for _, _, error in world.settled] == [None] * 3
    assert world.left(queue) == 0


def test_a_batch_that_failed_as_a_whole_is_tried_again(world, queue):
    world.sqs.fail_next(DELETES, UnavailableError("network"))
    world.submit(world.receive(queue, 4), Delete())
    world.work_off()
    assert len(world.batches(DELETES)[0]) == 4
    assert [error for _, _, error in world.settled] == [None] * 4
    assert world.left(queue) == 0


def test_a_retry_comes_after_a_pause_and_finds_whatever_batch_there_is(world, queue):
    one, two = world.receive(queue, 2)
    world.sqs.fail_next(DELETES, UnavailableError("network"))
    world.submit([one], Delete())
    world.clock.advance(WINDOW)
    world.turn()
    assert not world.turn()
    world.clock.advance(LONGEST_PAUSE)
    world.submit([two], Delete())
    world.work_off()
    assert [sorted(batch) for batch in world.batches(DELETES)[1:]] == [sorted([one.handle, two.handle])]


def test_a_refused_handle_is_not_tried_again(world, queue):
    (one,) = world.receive(queue)
    error = ReceiptHandleInvalidError("gone")
    world.sqs.fail_next(CHANGES, error, position=0)
    world.submit([one], Hide(5))
    world.work_off()
    assert world.count(CHANGES) == 1
    assert world.settled == [(one, Hide(5), error)]


def test_a_job_that_keeps_failing_ends_at_the_deadline(world, queue):
    (one,) = world.receive(queue)
    error = UnavailableError("network")
    for _ in range(5000):
        world.sqs.fail_next(CHANGES, error)
    world.submit([one], Hide(5))
    world.work_off()
    assert one.deadline - LONGEST_PAUSE - 1 <= world.clock.monotonic() <= one.deadline + STEP
    assert world.settled == [(one, Hide(5), error)]
    assert world.count(CHANGES) < TIMEOUT * 2


@pytest.mark.parametrize("settlement", [Hide(5), Release(), Park(700)])
def test_no_visibility_is_changed_after_the_deadline(world, queue, settlement):
    # Whoever has the message by now would lose it, if SQS takes the old handle.
    (one,) = world.receive(queue)
    world.sqs.fail_next(CHANGES, UnavailableError("its answer was lost"))
    world.submit([one], settlement)
    world.clock.advance(TIMEOUT - 0.5)
    assert world.turn()
    world.clock.advance(0.5)
    while world.turn():
        pass
    world.work_off()
    assert world.count(CHANGES) == 1
    ((settled, _, error),) = world.settled
    assert settled is one
    assert "its visibility timeout ran out" in str(error)


@pytest.mark.parametrize("settlement", [Hide(5), Release(), Park(700)])
def test_nor_is_it_the_first_time_where_the_threads_came_too_late(world, queue, settlement):
    late, early = world.receive(queue, 2)
    early.deadline += TIMEOUT
    world.submit([late, early], settlement)
    world.clock.advance(TIMEOUT)
    world.turn()
    assert [[handle for handle, _ in batch] for batch in world.batches(CHANGES)] == [[early.handle]]
    assert [(one, error is None) for one, _, error in world.settled] == [(early, True), (late, False)]
    assert world.done


def test_a_delete_after_a_late_extension_is_tried_until_the_new_deadline(world, queue):
    (one,) = world.receive(queue)
    for _ in range(3):
        world.sqs.fail_next(DELETES, UnavailableError("network"))
    world.clock.advance(TIMEOUT - 0.01)
    world.submit([one], Delete())
    one.deadline += TIMEOUT
    world.work_off()
    assert world.count(DELETES) == 4
    assert world.left(queue) == 0


def test_a_logging_filter_that_raises_takes_no_job_with_it(world, queue):
    deliveries = world.receive(queue, 3)
    world.sqs.fail_next(CHANGES, ThrottledError("slow down"))
    world.submit(deliveries, Hide(5))
    note = world.settler._settled

    def told(delivery, *what):
        note(delivery, *what)
        raise RuntimeError("a listener's bug")

    world.settler._settled = told
    with a_filter_that_raises(), suppress(RuntimeError):
        world.work_off()
    assert world.settled == [(one, Hide(5), None) for one in deliveries]


def test_a_delete_that_comes_after_the_deadline_is_tried_once(world, queue):
    (one,) = world.receive(queue)
    world.clock.advance(TIMEOUT + 1)
    world.sqs.fail_next(DELETES, UnavailableError("network"))
    world.submit([one], Delete())
    world.work_off()
    assert world.count(DELETES) == 1


def test_one_job_that_keeps_failing_does_not_hold_up_the_others(world, queue):
    bad, good = world.receive(queue, 2)
    for _ in range(3):
        world.sqs.fail_next(DELETES, UnavailableError("network"))
    world.submit([bad], Delete())
    world.clock.advance(WINDOW)
    world.turn()
    world.submit([good], Release())
    world.clock.advance(WINDOW)
    world.turn()
    assert world.settled == [(good, Release(), None)]


@given(
    st.integers(0, VISIBILITY_HORIZON), st.integers(0, VISIBILITY_HORIZON - 1), st.sampled_from([Hide, Park])
)
def test_a_hide_is_clamped_to_what_is_left_of_the_twelve_hours(seconds, elapsed, kind):
    world = World(window=0)
    queue = world.queue()
    (one,) = world.receive(queue)
    world.clock.advance(elapsed)
    one.deadline = world.clock.monotonic() + TIMEOUT
    world.submit([one], kind(seconds))
    world.turn()
    ((handle, asked),) = world.batches(CHANGES)[0]
    assert handle == one.handle
    assert asked == max(0, min(seconds, VISIBILITY_HORIZON - elapsed - HORIZON_MARGIN))
    assert world.settled == [(one, kind(asked), None)]  # SQS did not refuse, and nobody is told otherwise


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([Delete(), Hide(5), Release()])), max_size=80))
@settings(max_examples=40)
def test_whatever_is_submitted_every_job_is_done_once_and_no_batch_is_too_large(jobs):
    world = World()
    queues = [world.queue(name) for name in "abc"]
    submitted = []
    for place, settlement in jobs:
        (one,) = world.receive(queues[place])
        submitted.append((one, settlement, None))
        world.settler.submit(one, settlement)
        world.turn()
    world.work_off()
    assert sorted(map(id, (one for one, _, _ in submitted))) == sorted(
        map(id, (one for one, _, _ in world.settled))
    )
    assert all(len(batch) <= BATCH_ENTRIES for batch in world.batches(DELETES) + world.batches(CHANGES))


def test_a_bug_in_a_call_leaves_nothing_unfinished_for_ever(world, queue):
    world.sqs.fail_next(DELETES, RuntimeError("bug"))
    world.submit(world.receive(queue), Delete())
    world.clock.advance(WINDOW)
    with suppress(RuntimeError):  # the thread's loop logs it and goes on
        world.turn()
    for _ in range(100):
        world.clock.advance(LONGEST_PAUSE)
        world.turn()
    assert world.done


def test_a_dead_letter_is_copied_first_and_deleted_after(world, mortal, graves):
    (one,) = world.receive(mortal)
    world.submit([one], LETTER)
    world.work_off()
    actions = [name for name, _ in world.sqs.calls if name in {"SendMessage", DELETES}]
    assert actions[-2:] == ["SendMessage", DELETES]
    assert world.left(mortal) == 0
    assert world.left(graves) == 1


def test_a_dead_letter_tells_where_it_comes_from_and_why(world, mortal, graves):
    (one,) = world.receive(mortal)
    world.submit([one], DeadLetter("broken", "the body", Hide(9), {"exception": "ValueError()"}))
    world.work_off()
    everything = ReceiveOptions(message_attributes=("All",))
    (letter,) = world.sqs.receive(graves.url, 1, 0, everything)
    assert letter["Body"] == "the body"
    texts = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert texts == {
        "reason": "broken",
        "source_queue": "mortal",
        "message_id": one.facts.message_id,
        "receive_count": "1",
        "task": "tasks.add",
        "task_id": "id-1",
        "exception": "ValueError()",
        "last_received": "2023-11-14T22:13:20.000+00:00",
    }


def test_a_dead_letter_of_a_fifo_queue_has_a_group_and_is_sent_once(world):
    graves = world.queue("graves.fifo", {"FifoQueue": "true"})
    arn = world.sqs.queue_attributes(graves.url, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    queue = world.queue("q.fifo", {"FifoQueue": "true", "RedrivePolicy": policy})
    world.redrive.get(queue, world.clock.monotonic())
    (one,) = world.receive(queue)
    assert world.dead_letters.send(one, LETTER)
    assert world.dead_letters.send(one, LETTER)
    assert world.left(graves) == 1


def test_the_dead_letters_of_a_fifo_queue_go_one_after_the_other(world):
    queue = world.queue("q.fifo", {"FifoQueue": "true"})
    sent = []

    def while_one_is_sent(delivery, _letter):
        sent.append(delivery.facts.message_id)
        now = world.clock.monotonic()
        assert world.settler.due(now) is None  # what another thread finds meanwhile
        assert world.settler.take(now) is None

    world.settler._send_copy = while_one_is_sent
    world.submit(world.receive(queue, 2), LETTER)
    assert world.turn()
    assert world.turn()
    assert len(set(sent)) == 2


def test_the_dead_letters_of_a_fifo_queue_stay_in_order_when_one_is_tried_again(world):
    queue = world.queue("q.fifo", {"FifoQueue": "true"})
    tried, sent = [], []

    def fail_twice(delivery, _letter):
        tried.append(delivery)
        if len(tried) <= 2:
            raise ThrottledError("slow down")
        sent.append(delivery)

    world.settler._send_copy = fail_twice
    letters = world.receive(queue, 3)
    world.submit(letters, LETTER)
    assert world.turn()
    assert not world.turn(), "none overtakes the one that is tried again"
    world.work_off()
    assert tried == [letters[0], letters[0], *letters]
    assert sent == letters


def test_other_dead_letters_do_not_wait_for_each_other(world, mortal):
    world.submit(world.receive(mortal, 2), LETTER)
    now = world.clock.monotonic()
    assert world.settler.take(now)
    assert world.settler.take(now)


def test_without_a_dead_letter_queue_nothing_is_deleted(world, queue):
    (one,) = world.receive(queue)
    world.submit([one], LETTER)
    world.work_off()
    assert world.count(DELETES) == 0
    assert world.batches(CHANGES) == [[(one.handle, 9)]]
    assert world.left(queue) == 1


@pytest.mark.parametrize("error", [AccessDeniedError("no leave to send"), RequestRefusedError("too large")])
def test_nothing_is_deleted_when_the_dead_letter_queue_refuses(world, mortal, caplog, error):
    (one,) = world.receive(mortal)
    world.sqs.fail_next("SendMessage", error)
    world.submit([one], LETTER)
    world.work_off()
    assert world.count(DELETES) == 0
    assert world.batches(CHANGES) == [[(one.handle, 9)]]
    assert world.left(mortal) == 1
    assert "cannot send to the dead-letter queue of 'mortal'" in caplog.text


def test_a_dead_letter_that_cannot_be_sent_now_is_sent_later_and_deleted_after(world, mortal, graves):
    (one,) = world.receive(mortal)
    world.sqs.fail_next("SendMessage", UnavailableError("network"))
    world.submit([one], LETTER)
    world.work_off()
    assert world.count(DELETES) == 1
    assert world.left(graves) == 1


def test_a_dead_letter_that_can_never_be_sent_is_not_deleted(world, mortal):
    (one,) = world.receive(mortal)
    error = UnavailableError("network")
    for _ in range(5000):
        world.sqs.fail_next("SendMessage", error)
    world.submit([one], LETTER)
    world.work_off()
    assert world.count(DELETES) == 0
    assert world.settled == [(one, LETTER, error)]
    assert world.left(mortal) == 1


def test_a_flush_of_nothing_is_done_at_once(world):
    assert world.settler.flush(0)


def test_a_flush_does_not_wait_for_company():
    world = World(window=5)  # which never passes: nobody turns the clock
    queue = world.queue()
    world.settler.batch_threads.start()
    world.settler.batch_threads.start()
    try:
        world.submit(world.receive(queue, 3), Delete())
        assert world.settler.flush(SOON)
    finally:
        world.settler.batch_threads.stop()
    assert world.left(queue) == 0


def test_a_stopped_settler_finishes_what_it_was_given():
    world = World(window=0)
    queue = world.queue()
    deliveries = world.receive(queue, 25)
    world.submit(deliveries, Delete())
    world.settler.batch_threads.stop()
    world.settler.batch_threads.start()
    world.settler.batch_threads.stop()
    assert world.settler.flush(SOON)
    assert world.left(queue) == 0


def test_stop_before_start_is_legal(world):
    world.settler.batch_threads.stop()


def test_trouble_is_told_once_for_each_kind_of_request_and_so_is_its_end(world, queue, caplog):
    deliveries = world.receive(queue, 30)
    for action in (DELETES, CHANGES):
        for _ in range(3):
            world.sqs.fail_next(action, ThrottledError("slow"))
    world.submit(deliveries[:15], Delete())
    world.submit(deliveries[15:], Hide(9))
    world.work_off()
    told = sorted(record.getMessage() for record in caplog.records)
    assert [text.split(":")[0].split(",")[0] for text in told] == [
        "cannot delete messages and will try again",
        "cannot hide or release messages and will try again",
        "deletes messages again",
        "hides and releases messages again",
    ]


@pytest.mark.parametrize("settlement", [Delete(), Release()])
def test_what_was_done_at_the_first_try_whose_answer_was_lost_is_done(world, queue, settlement):
    (one,) = world.receive(queue)
    action = DELETES if isinstance(settlement, Delete) else CHANGES
    world.sqs.fail_next(action, UnavailableError("lost"))
    world.sqs.fail_next(action, ReceiptHandleInvalidError("gone"))
    world.submit([one], settlement)
    world.work_off()
    assert world.settled == [(one, settlement, None)]


def test_a_handle_that_is_good_no_more_at_the_first_try_is_lost(world, queue):
    (one,) = world.receive(queue)
    gone = ReceiptHandleInvalidError("gone")
    world.sqs.fail_next(DELETES, gone)
    world.submit([one], Delete())
    world.work_off()
    assert world.settled == [(one, Delete(), gone)]
