"""One reservation for all queues: never more asked for than may be held, and nobody waits for nothing."""

from __future__ import annotations

import gc
import queue as queues
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.policy.prefetch import LONG, UNLIMITED, Slots
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.policy.receive_size import LIKELY_SECONDS


def make_room(prefetch_count, queue_count=1, prefetch_seconds=0.0, clock=None):
    capacity = ReceiveCapacity(prefetch_seconds, clock or FakeClock())
    capacity.prefetch_count = prefetch_count
    for _ in range(queue_count):
        capacity.add_queue()
    return capacity


def fill(capacity, messages):
    """Hold that many more messages."""
    while messages:
        reservation = capacity.reserve("q", 0)
        brought = min(messages, reservation.messages)
        capacity.received(reservation, brought)
        messages -= brought


class Waiter(threading.Thread):
    """Somebody who waits for room; what came of it is in `answer`."""

    def __init__(self, capacity, answers):
        super().__init__(daemon=True)
        self.capacity, self.answers = capacity, answers

    def run(self):
        self.answers.put(self.capacity.reserve("q", SOON))


def start_waiters(capacity, count):
    answers = queues.SimpleQueue()
    waiters = [Waiter(capacity, answers) for _ in range(count)]
    for waiter in waiters:
        waiter.start()
    return waiters, answers


def test_a_request_asks_for_ten_at_most():
    assert make_room(100).reserve("q", 0).messages == BATCH_ENTRIES


def test_a_request_asks_for_no_more_than_there_is_room_for():
    assert make_room(4).reserve("q", 0).messages == 4


def test_unlimited_has_a_limit():
    capacity = make_room(0)
    fill(capacity, UNLIMITED - UNLIMITED % BATCH_ENTRIES)
    assert capacity.reserve("q", 0) is None


def test_a_full_room_has_none_to_give():
    capacity = make_room(4)
    fill(capacity, 4)
    assert capacity.reserve("q", 0) is None


def test_what_is_asked_for_counts_as_taken():
    capacity = make_room(4)
    capacity.reserve("q", 0)
    assert capacity.reserve("q", 0) is None


def test_an_empty_poll_gives_its_room_back():
    capacity = make_room(4)
    capacity.received(capacity.reserve("q", 0), 0)
    assert capacity.held == 0
    assert capacity.reserve("q", 0).messages == 4


def test_what_was_settled_makes_room():
    capacity = make_room(4)
    fill(capacity, 4)
    capacity.release(began=0.0)
    assert capacity.held == 3
    assert capacity.reserve("q", 0).messages == 1


def test_several_queues_share_the_room():
    capacity = make_room(8, queue_count=4)
    assert [capacity.reserve(name, 0).messages for name in "abcd"] == [2, 2, 2, 2]


def test_where_there_is_less_room_than_queues_the_polls_are_short():
    capacity = make_room(2, queue_count=4)
    assert capacity.reserve("q", 0).crowded
    assert make_room(40, queue_count=4).reserve("q", 0).crowded is False


def make_small_pool(slots, prefetch_count, queue_count):
    capacity = ReceiveCapacity(0.0, FakeClock(), lambda: Slots(slots, prefetch_count))
    capacity.prefetch_count = prefetch_count
    for _ in range(queue_count):
        capacity.add_queue()
    return capacity


def test_idle_queues_are_polled_long_though_there_are_more_of_them_than_slots():
    capacity = make_small_pool(slots=2, prefetch_count=8, queue_count=3)
    polls = [capacity.reserve(name, 0) for name in "abc"]
    assert [(poll.messages, poll.crowded) for poll in polls] == [(1, False)] * 3


def test_a_queue_that_joins_late_is_polled_though_the_first_has_taken_the_room():
    capacity = make_small_pool(slots=2, prefetch_count=8, queue_count=1)
    assert capacity.reserve("early", 0).messages == 2
    capacity.add_queue()
    late = capacity.reserve("late", 0)
    assert (late.messages, late.crowded) == (1, False)
    assert capacity.reserve("late", 0) is None  # that is one poll, and no helpers


def test_idle_queues_keep_no_slot_from_a_busy_one():
    capacity = make_small_pool(slots=2, prefetch_count=8, queue_count=3)
    for name in "bc":
        capacity.reserve(name, 0)
    for _ in range(2):
        poll = capacity.reserve("a", 0)
        assert (poll.messages, poll.crowded) == (1, False)
        capacity.received(poll, 1)
    assert capacity.reserve("a", 0) is None


def test_what_a_queue_has_reserved_in_better_times_keeps_no_slot_from_another():
    capacity = ReceiveCapacity(1.0, clock := FakeClock(), lambda: Slots(2, 8))
    capacity.prefetch_count = 8
    for _ in range(2):
        capacity.add_queue()
    for _ in range(300):
        capacity.received(capacity.reserve("a", 0), 1)
        clock.advance(0.01)
        capacity.release(began=clock.monotonic() - 0.01)
    assert capacity.reserve("quiet", 0).messages == BATCH_ENTRIES
    clock.advance(60)
    assert capacity.reserve("a", 0).messages == 8
    assert capacity.reserve("a", 0) is None


@pytest.mark.parametrize("waiting", [3, 20])
def test_what_is_held_for_its_eta_keeps_no_slot_idle(waiting):
    capacity = make_small_pool(slots=2, prefetch_count=8, queue_count=1)
    for _ in range(waiting):
        capacity.received(capacity.reserve("q", 0), 1)
        capacity.prefetch_count += 1  # as Celery does
    assert capacity.reserve("q", 0).messages == 2
    assert capacity.reserve("q", 0) is None


def test_a_queue_that_leaves_gives_its_share_to_the_others():
    capacity = make_room(8, queue_count=2)
    capacity.remove_queue()
    assert capacity.reserve("q", 0).messages == 8


def test_a_second_poll_of_the_same_queue_leaves_the_others_their_share():
    capacity = make_room(20, queue_count=2)
    busy = capacity.reserve("q", 0)
    helper = capacity.reserve("q", 0)  # the busy queue's batches come back full: a second thread polls it
    assert busy.messages == 10
    assert helper.messages == 5
    assert capacity.reserve("other", 0).messages == 5


def test_work_at_the_measured_pace_is_held_beyond_celerys_count():
    clock = FakeClock()
    capacity = make_room(4, prefetch_seconds=1.0, clock=clock)
    for _ in range(300):
        fill(capacity, 1)
        clock.advance(0.01)
        capacity.release(began=clock.monotonic() - 0.01)
    fill(capacity, 50)
    assert capacity.held == 50


def test_what_did_not_run_says_nothing_about_the_pace():
    clock = FakeClock()
    capacity = make_room(4, prefetch_seconds=1.0, clock=clock)
    for _ in range(300):
        fill(capacity, 1)
        clock.advance(0.01)
        capacity.release()
    fill(capacity, 4)
    assert capacity.reserve("q", 0) is None


def test_beyond_celerys_count_only_full_batches_are_asked_for():
    clock = FakeClock()
    capacity = make_room(4, prefetch_seconds=1.0, clock=clock)
    for _ in range(500):
        fill(capacity, 1)
        clock.advance(0.01)
        capacity.release(began=clock.monotonic() - 0.01)
    fill(capacity, 20)
    while (reservation := capacity.reserve("q", 0)) is not None:
        assert reservation.messages == BATCH_ENTRIES


def test_a_freed_slot_wakes_one_who_waits_and_no_more():
    capacity = make_room(2, queue_count=2)
    fill(capacity, 2)
    waiters, answers = start_waiters(capacity, 2)
    capacity.release(began=0.0)
    assert answers.get(timeout=SOON).messages == 1
    assert capacity.reserve("q", 0) is None
    assert answers.empty()
    capacity.release(began=0.0)
    assert answers.get(timeout=SOON).messages == 1
    for waiter in waiters:
        waiter.join(SOON)


@pytest.mark.parametrize("change", ["prefetch_count", "an empty poll"])
def test_whatever_makes_room_wakes_who_waits(change):
    capacity = make_room(2)
    reservation = capacity.reserve("q", 0)
    (waiter,), answers = start_waiters(capacity, 1)
    if change == "prefetch_count":
        capacity.prefetch_count = 3
    else:
        capacity.received(reservation, 1)
    assert answers.get(timeout=SOON).messages == 1
    waiter.join(SOON)


def test_an_interrupt_sends_home_who_has_given_up():
    capacity = make_room(1)
    fill(capacity, 1)
    answers = queues.SimpleQueue()
    given_up = threading.Event()
    waiting = threading.Event()

    def asked_whether_to_give_up():
        waiting.set()
        return given_up.is_set()

    def wait_for_room():
        answers.put(capacity.reserve("q", 60, asked_whether_to_give_up))

    thread = threading.Thread(target=wait_for_room, daemon=True)
    thread.start()
    assert waiting.wait(SOON)
    given_up.set()
    capacity.wake()
    thread.join(SOON)
    assert not thread.is_alive()
    assert answers.get() is None


def test_who_waits_keeps_its_place():
    capacity = make_room(1, queue_count=4)
    fill(capacity, 1)
    line = [capacity.add_waiter(name) for name in "abcd"]
    assert not any(waiter.reservation for waiter in line)
    capacity.release(began=0.0)
    assert [bool(waiter.reservation) for waiter in line] == [True, True, False, False]
    for number in (0, 1):
        assert capacity.reserve("d", 0) is None, "it does not wait"
        again = capacity.add_waiter(line[number].queue)
        capacity.received(line[number].reservation, 0)
        assert line[number + 2].reservation
        assert not again.reservation, "who was served is the last in line"


def test_who_waits_for_its_turn_keeps_nobody_waiting_who_needs_room():
    capacity = make_small_pool(slots=2, prefetch_count=2, queue_count=20)
    fill(capacity, 2)  # of the busy queue "q"
    line = [capacity.add_waiter(name) for name in (*"abcdefghij", "q")]
    capacity.release(began=0.0)
    served = [waiter.queue for waiter in line if waiter.reservation]
    assert served == ["a", "b", "q"], "idle queues take turns, in their order, and the busy one has the slot"


def test_a_poll_that_waits_in_vain_keeps_its_room_no_longer_from_a_busy_queue():
    clock = FakeClock()
    capacity = ReceiveCapacity(0.0, clock, lambda: Slots(2, 2))
    capacity.prefetch_count = 2
    for name in "ab":
        capacity.add_queue()
        capacity.received(capacity.reserve(name, 0), 1)
    for _ in range(2):
        capacity.release(began=0.0)
    capacity.reserve("a", 0)
    assert capacity.reserve("a", 0) is not None  # both slots: a second thread polls it
    waiter = capacity.add_waiter("b")
    capacity.replace_stuck(clock.monotonic())
    assert waiter.reservation is None
    clock.advance(LIKELY_SECONDS)
    capacity.replace_stuck(clock.monotonic())
    assert waiter.reservation.messages == 2


def test_a_queue_that_has_a_message_for_sure_does_not_wait_for_its_turn():
    capacity = make_small_pool(slots=2, prefetch_count=2, queue_count=20)
    idle = [capacity.add_waiter(name) for name in "abcdef"]
    assert idle[-1].reservation is None
    capacity.expect("f")
    assert idle[-1].reservation is not None
    assert idle[-2].reservation is None


class Sharing(RuleBasedStateMachine):
    """Queues that come, poll, hold and go."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.capacity = make_room(5, queue_count=0, prefetch_seconds=1.0, clock=self.clock)
        self.queues = 0
        self.polls = {}  # in flight: whether they are likely to bring what they ask for
        self.busy = set()
        self.held = 0

    @rule()
    def join(self):
        self.queues += 1
        self.capacity.add_queue()

    @precondition(lambda self: self.queues)
    @rule()
    def leave(self):
        self.queues -= 1
        self.capacity.remove_queue()

    @rule(count=st.integers(1, 200))
    def celery_changes_its_mind(self, count):
        self.capacity.prefetch_count = count

    def asked_for(self, counts=lambda _poll, _likely: True):
        return sum(poll.messages for poll, likely in self.polls.items() if counts(poll, likely))

    @rule(name=st.sampled_from("abc"))
    def reserve(self, name):
        busy, polled = name in self.busy, any(poll.queue == name for poll in self.polls)
        asked_for = self.asked_for()
        if busy:
            asked_for = self.asked_for(lambda poll, likely: likely or poll.queue == name)
        limit, slots = self.capacity._limit(self.capacity._pool()), self.capacity.prefetch_count
        idle_polls = list(self.polls.values()).count(False)
        reservation = self.capacity.reserve(name, 0)
        if reservation is None:
            turn = polled or idle_polls or self.queues == 1
            assert self.held + asked_for >= slots or (turn and not busy), "a slot stands idle"
            return
        assert 1 <= reservation.messages <= BATCH_ENTRIES
        if self.held + asked_for + reservation.messages > limit:  # for the first message of an idle queue
            assert not busy
            assert not polled
            assert reservation.messages == 1
            assert idle_polls < max(slots, limit, self.queues)
            assert self.held < slots or limit > slots
        self.polls[reservation] = busy

    @precondition(lambda self: self.polls)
    @rule(data=st.data())
    def poll_returns(self, data):
        poll = data.draw(st.sampled_from(list(self.polls)))
        del self.polls[poll]
        brought = data.draw(st.integers(0, poll.messages))
        self.capacity.received(poll, brought)
        self.held += brought
        if brought:
            self.busy.add(poll.queue)
        elif not any(other.queue == poll.queue for other in self.polls):
            self.busy.discard(poll.queue)

    @rule()
    def polls_wait_in_vain(self):
        self.clock.advance(LIKELY_SECONDS)
        self.capacity.replace_stuck(self.clock.monotonic())
        self.busy -= {poll.queue for poll, likely in self.polls.items() if likely}
        self.polls = dict.fromkeys(self.polls, False)

    @precondition(lambda self: self.held)
    @rule(ran=st.booleans(), seconds=st.floats(0, 1))
    def one_is_settled(self, ran, seconds):
        self.clock.advance(seconds)
        self.capacity.release(began=self.clock.monotonic() - seconds if ran else None)
        self.held -= 1

    @invariant()
    def the_counts_are_right(self):
        assert self.capacity.held == self.held
        assert self.capacity._expected == self.asked_for(lambda _, likely: likely)
        assert self.capacity._unlikely.total() == self.asked_for(lambda _, likely: not likely)
        assert self.capacity._busy == self.busy


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize(
    ("runs", "seconds", "messages"),
    [(20, 2, 2), (200, 0.01, 10)],
    ids=["long tasks: what can run", "short ones: full batches"],
)
def test_runs_that_were_acknowledged_when_they_began_count_when_they_end(runs, seconds, messages):
    clock = FakeClock()
    capacity = ReceiveCapacity(1, clock, lambda: Slots(2, 8))
    capacity.prefetch_count = 8
    for _ in range(runs):
        capacity.received(capacity.reserve("q", 0), 1)
        capacity.start_run(run := Run())
        clock.advance(0.01)
        capacity.end_run(run, clock.monotonic() - seconds)
    assert capacity.reserve("q", 0).messages == messages


class Run:
    """Stands for a delivery."""


def test_a_run_that_was_acknowledged_when_it_began_has_a_slot_until_it_ends():
    capacity = ReceiveCapacity(1, clock := FakeClock(), lambda: Slots(2, 2))
    capacity.prefetch_count = 2
    capacity.received(capacity.reserve("q", 0), 2)
    runs = [Run(), Run()]
    for run in runs:
        capacity.start_run(run)
    assert capacity.held == 0
    assert capacity.reserve("q", 0) is None
    for _ in range(2):  # told twice, it counts once
        capacity.end_run(runs[0], clock.monotonic() - LONG)
    assert capacity.reserve("q", 0).messages == 1
    assert capacity.reserve("q", 0) is None


def test_a_run_that_is_forgotten_has_no_slot():
    capacity = ReceiveCapacity(1, FakeClock(), lambda: Slots(2, 2))
    capacity.prefetch_count = 2
    capacity.received(capacity.reserve("q", 0), 2)
    for _ in range(2):
        capacity.start_run(Run())
    gc.collect()
    assert capacity.reserve("q", 0).messages == 2


def test_who_waits_for_a_slot_is_told_when_a_run_ends():
    capacity = ReceiveCapacity(1, clock := FakeClock(), lambda: Slots(1, 1))
    capacity.prefetch_count = 1
    capacity.received(capacity.reserve("q", 0), 1)
    capacity.start_run(run := Run())
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(capacity.reserve, "q", SOON)
        wait_until(lambda: capacity._line, SOON, "somebody to wait in line")
        capacity.end_run(run, clock.monotonic() - LONG)
        assert waiting.result(SOON).messages == 1
