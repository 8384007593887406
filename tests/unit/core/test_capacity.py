"""One capacity for all queues: no more is asked for than may be held, and nobody waits for nothing."""

import gc
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.clock import FakeClock
from support.factories import FilledCapacity, capacity

from celery_sqs_visibility.core.capacity import AskedFor, RecentRuns, Reservation, Waiter
from celery_sqs_visibility.core.delivery import Wait
from celery_sqs_visibility.core.held import STANDS_STILL_SECONDS
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import (
    COLLECTED_AFTER_SECONDS,
    LIKELY_SECONDS,
    LONG_TASK_SECONDS,
    UNLIMITED,
    Slots,
    message_limit,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS


def fill(shared, messages):
    """Hold this many more messages."""
    while messages:
        reservation = shared.reserve("q")
        brought = min(messages, reservation.messages)
        shared.received(reservation, brought)
        messages -= brought


def asked(shared, queue="q"):
    """The messages that a poll of the queue may ask for just now; 0 if it has to wait."""
    reservation = shared.reserve(queue)
    return reservation.messages if reservation else 0


def run(shared, clock, seconds, count, *, ran=True, queue="q"):
    """Receive and run tasks one after the other."""
    for _ in range(count):
        shared.received(shared.reserve(queue), 1)
        clock.advance(seconds)
        shared.release(began=clock.monotonic() - seconds if ran else None)


@pytest.mark.parametrize(
    ("prefetch_count", "consumed", "polled", "messages"),
    [
        (100, 1, "q", [BATCH_ENTRIES]),
        (4, 1, "q", [4]),
        (8, 4, "abcd", [2, 2, 2, 2]),
        # The busy queue's batches come back full: a second thread polls it.
        (20, 2, "qqa", [10, 5, 5]),
    ],
    ids=["ten at most", "what there is room for", "its share", "others keep their share"],
)
def test_a_request_asks_for_what_there_is_room_for(prefetch_count, consumed, polled, messages):
    shared = capacity(prefetch_count, consumed)
    assert [asked(shared, name) for name in polled] == messages


def test_unlimited_has_a_limit():
    shared = FilledCapacity()  # whose prefetch count Celery has not set
    shared.add_queue("q")
    assert shared.handed == 0
    fill(shared, UNLIMITED - UNLIMITED % BATCH_ENTRIES)
    assert asked(shared) == 0


def test_messages_held_and_messages_asked_for_take_room_until_they_are_settled_or_do_not_come():
    shared = capacity(4)
    poll = shared.reserve("q")
    assert asked(shared) == 0
    shared.received(poll, 0)
    assert shared.held == 0
    fill(shared, 4)
    assert asked(shared) == 0
    shared.release(began=0.0)
    assert shared.held == 3
    assert asked(shared) == 1


def test_a_queue_that_is_removed_gives_its_share_to_the_others():
    shared = capacity(8, queues=2)
    shared.remove_queue("another")
    assert asked(shared) == 8


def test_a_queue_that_was_added_twice_has_its_share_until_it_is_removed_twice():
    shared = capacity(8, queues=0)
    for name in ("twice", "twice", "q"):
        shared.add_queue(name)
    shared.remove_queue("twice")
    poll = shared.reserve("q")
    assert poll.messages == 4
    shared.received(poll, 0)
    shared.remove_queue("twice")
    assert asked(shared) == 8


def test_polls_of_a_queue_that_is_removed_keep_nothing_from_the_next_one():
    shared = capacity(1)
    poll = shared.reserve("cancelled")
    assert asked(shared, "next") == 0
    shared.remove_queue("cancelled")
    shared.forget_polls("cancelled")
    shared.add_queue("next")
    assert asked(shared, "next") == 1
    shared.received(poll, 1)  # which is given back
    shared.release()
    assert shared.held == 0


def test_where_there_is_less_capacity_than_queues_the_polls_are_short():
    assert capacity(2, queues=4).reserve("q").wait < WAIT_TIME_SECONDS
    assert capacity(40, queues=4).reserve("q").wait == WAIT_TIME_SECONDS


def test_idle_queues_are_polled_long_though_there_are_more_of_them_than_slots():
    shared = capacity(8, slots=2, queues=3)
    polls = [shared.reserve(name) for name in "abc"]
    assert [(poll.messages, poll.wait) for poll in polls] == [(1, WAIT_TIME_SECONDS)] * 3
    shared.received(polls[0], 1)  # that one is busy, and the idle ones keep no slot from it
    poll = shared.reserve("a")
    assert (poll.messages, poll.wait) == (1, WAIT_TIME_SECONDS)
    shared.received(poll, 1)
    assert asked(shared, "a") == 0


def test_a_queue_that_is_added_late_is_polled_though_the_first_has_taken_the_capacity():
    shared = capacity(8, slots=2)
    assert asked(shared, "early") == 2
    shared.add_queue("late")
    late = shared.reserve("late")
    assert (late.messages, late.wait) == (1, WAIT_TIME_SECONDS)
    assert asked(shared, "late") == 0  # that is one poll, and no helpers


def test_what_a_queue_has_reserved_in_better_times_keeps_no_slot_from_another():
    clock = FakeClock()
    shared = capacity(8, slots=2, queues=2, prefetch_seconds=1.0, clock=clock)
    run(shared, clock, 0.01, 300, queue="a")
    assert asked(shared, "quiet") == BATCH_ENTRIES
    clock.advance(60)
    assert asked(shared, "a") == 8
    assert asked(shared, "a") == 0


@pytest.mark.parametrize(("ran", "most"), [(True, 50), (False, 4)])
def test_work_at_the_measured_pace_is_held_beyond_celerys_count_if_it_ran(ran, most):
    clock = FakeClock()
    shared = capacity(4, prefetch_seconds=1.0, clock=clock)
    run(shared, clock, 0.01, 300, ran=ran)
    fill(shared, most)
    if ran:
        while (messages := asked(shared)) > 0:
            assert messages == BATCH_ENTRIES, "beyond Celery's count only full batches are asked for"
    assert asked(shared) == 0


def test_a_freed_slot_wakes_one_waiter_and_no_more():
    shared, woken = capacity(2, queues=2), []
    fill(shared, 2)
    waiters = [Waiter("q", False, partial(woken.append, number)) for number in range(2)]
    for waiter in waiters:
        shared.add_waiter(waiter, 0.0)
    for number in range(2):
        assert woken == list(range(number))
        shared.release(began=0.0)
        assert waiters[number].reservation.messages == 1
        assert asked(shared) == 0
    assert woken == [0, 1]


@pytest.mark.parametrize("queue", ["q", "q.fifo"])
def test_a_place_that_no_message_has_is_free_where_nothing_moves(queue):
    shared, fifo = capacity(2), queue.endswith(".fifo")
    (held, settled) = shared.hold(2, queue=queue, fifo=fifo)
    shared.deliveries.remove(settled)  # and its place was not freed, since memory lacked
    waiter = shared.wait(queue, fifo=fifo)
    shared.handed += 1
    shared.look(0.0)
    assert waiter.reservation is None, "something moves"
    shared.look(0.5)
    assert waiter.reservation.messages == 1
    assert shared.held == 1
    shared.rest(held, Wait.PAYLOAD)
    shared.wait("another")
    shared.look(1.0)
    shared.resume(held)
    assert shared.held == 1, "what waits for its payload has no place, and has it again"


@pytest.mark.parametrize("change", ["prefetch_count", "an empty poll", "the end of a run"])
def test_whatever_makes_room_serves_a_waiter(change):
    shared = capacity(2)
    reservation = shared.reserve("q")
    if change == "the end of a run":
        task, _ = shared.received(reservation, 2)
        shared.release(task, began=0.0, early=True)
    waiter = shared.wait("q")
    assert waiter.reservation is None
    if change == "prefetch_count":
        shared.prefetch_count = 3
        shared.serve(shared.now)
    elif change == "an empty poll":
        shared.answered(reservation, 1, shared.now)
    else:
        shared.end_run(task, -LONG_TASK_SECONDS, shared.now)
        shared.serve(shared.now)
    assert waiter.reservation.messages == 1


def test_what_has_come_is_reserved_until_it_is_held():
    shared = capacity(4)
    poll = shared.reserve("q")
    shared.answered(poll, 3, shared.now)
    assert (shared.held, asked(shared)) == (0, 1)
    shared.hold(3)
    assert asked(shared) == 0
    for _ in range(2):  # told twice, it counts once
        shared.taken(poll, shared.now)
        assert asked(shared) == 0
    shared.release()
    assert asked(shared) == 1


def test_what_comes_and_is_not_held_leaves_its_capacity_to_others():
    shared = capacity(4)
    poll = shared.reserve("q")
    shared.answered(poll, 4, shared.now)
    waiter = shared.wait("q")
    assert waiter.reservation is None
    shared.taken(poll, shared.now)
    assert waiter.reservation.messages == 4


def test_what_has_come_to_a_fifo_queue_counts_there_too():
    shared = capacity(10, slots=1)
    shared.answered(shared.reserve("q.fifo", fifo=True), 1, shared.now)
    assert shared.reserve("another.fifo", fifo=True) is None


def test_waiters_are_served_in_their_order():
    shared = capacity(1, queues=4)
    fill(shared, 1)
    waiters = [shared.wait(name) for name in "abcd"]
    assert not any(waiter.reservation for waiter in waiters)
    shared.release(began=0.0)
    assert [bool(waiter.reservation) for waiter in waiters] == [True, True, False, False]
    for number in (0, 1):
        assert asked(shared, "d") == 0, "it does not wait"
        again = shared.wait(waiters[number].queue)
        shared.received(waiters[number].reservation, 0)
        assert waiters[number + 2].reservation
        assert not again.reservation, "a queue that was served is the last waiter"


def test_an_idle_queue_that_waits_in_the_rotation_keeps_no_busy_one_waiting():
    shared = capacity(2, slots=2, queues=20)
    fill(shared, 2)  # of the busy queue "q"
    waiters = [shared.wait(name) for name in (*"abcdefghij", "q")]
    shared.release(began=0.0)
    served = [waiter.queue for waiter in waiters if waiter.reservation]
    assert served == ["a", "b", "q"], (
        "idle queues are polled in rotation, in their order, and the busy one has the slot"
    )


def test_a_queue_that_is_polled_and_lacks_capacity_keeps_no_other_from_its_first_message():
    shared = capacity(2, slots=2, queues=2)
    assert asked(shared, "polled") == 1
    fill(shared, 2)
    polled, other = shared.wait("polled"), shared.wait("other")
    assert other.reservation is None
    shared.release(began=0.0)
    assert polled.reservation is None
    assert other.reservation.messages == 1


def test_a_poll_that_waits_in_vain_keeps_its_capacity_no_longer_from_a_busy_queue():
    clock = FakeClock()
    shared = capacity(2, slots=2, queues=0, clock=clock)
    for name in "ab":
        shared.add_queue(name)
        shared.received(shared.reserve(name), 1)
    for _ in range(2):
        shared.release(began=0.0)
    assert asked(shared, "a")
    assert asked(shared, "a")  # both slots: a second thread polls it
    waiter = shared.wait("b")
    shared.look(clock.monotonic())
    assert waiter.reservation is None
    clock.advance(LIKELY_SECONDS)
    shared.look(clock.monotonic())
    assert waiter.reservation.messages == 2


def test_a_queue_that_has_a_message_for_sure_does_not_wait_for_the_rotation():
    shared = capacity(2, slots=2, queues=20)
    idle = [shared.wait(name) for name in "abcdef"]
    assert idle[-1].reservation is None
    shared.expect("f", shared.now)
    assert idle[-1].reservation is not None
    assert idle[-2].reservation is None


class Sharing(RuleBasedStateMachine):
    """Queues that come, poll, hold and go."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.capacity = capacity(5, 0, prefetch_seconds=1.0, clock=self.clock)
        self.slots, self.runs = 5, RecentRuns()
        self.queues = 0
        self.polls = {}  # in flight: whether they are likely to bring what they ask for
        self.busy = set()
        self.held = 0

    @rule()
    def join(self):
        self.queues += 1
        self.capacity.add_queue(f"q{self.queues}")

    @precondition(lambda self: self.queues)
    @rule()
    def leave(self):
        self.queues -= 1
        self.capacity.remove_queue("another")

    @rule(count=st.integers(1, 200))
    def celery_changes_its_mind(self, count):
        self.slots = self.capacity.prefetch_count = count

    def asked_for(self, counts=lambda _poll, _likely: True):
        return sum(poll.messages for poll, likely in self.polls.items() if counts(poll, likely))

    @rule(name=st.sampled_from("abc"))
    def reserve(self, name):
        busy, polled = name in self.busy, any(poll.queue == name for poll in self.polls)
        asked_for = self.asked_for()
        if busy:
            asked_for = self.asked_for(lambda poll, likely: likely or poll.queue == name)
        slots, pace = self.slots, self.runs.per_second(self.clock.monotonic())
        limit = message_limit(Slots(slots, slots), pace, self.runs.seconds, 1.0)
        idle_polls = list(self.polls.values()).count(False)
        reservation = self.capacity.reserve(name)
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
        self.capacity.look(self.clock.monotonic())
        self.busy -= {poll.queue for poll, likely in self.polls.items() if likely}
        self.polls = dict.fromkeys(self.polls, False)

    @precondition(lambda self: self.held)
    @rule(ran=st.booleans(), seconds=st.floats(0, 1))
    def one_is_settled(self, ran, seconds):
        self.clock.advance(seconds)
        now = self.clock.monotonic()
        self.capacity.release(began=now - seconds if ran else None)
        if ran:
            self.runs.note(now, now - (now - seconds))
        self.held -= 1

    @invariant()
    def the_count_is_right(self):
        assert self.capacity.held == self.held


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize(
    ("runs", "seconds", "messages"),
    [(20, 2, 2), (200, 0.01, 10)],
    ids=["long tasks: what can run", "short ones: full batches"],
)
def test_runs_that_were_acknowledged_when_they_began_count_when_they_end(runs, seconds, messages):
    clock = FakeClock()
    shared = capacity(8, slots=2, prefetch_seconds=1, clock=clock)
    for _ in range(runs):
        (task,) = shared.received(shared.reserve("q"), 1)
        shared.release(task, began=clock.monotonic(), early=True)
        clock.advance(0.01)
        shared.end_run(task, clock.monotonic() - seconds, clock.monotonic())
    assert asked(shared) == messages


def test_a_run_that_was_acknowledged_when_it_began_has_a_slot_until_it_ends_or_is_forgotten():
    shared = capacity(2, slots=2, prefetch_seconds=1)
    fill(shared, 2)
    runs = [shared.release(began=0.0, early=True) for _ in range(2)]
    assert shared.held == 0
    assert asked(shared) == 0
    for _ in range(2):  # told twice, it counts once
        shared.end_run(runs[0], -LONG_TASK_SECONDS, shared.now)
    assert asked(shared) == 1
    assert asked(shared) == 0
    runs.clear()
    gc.collect()
    assert asked(shared) == 1


def test_a_run_of_a_fifo_queue_that_was_acknowledged_early_counts_there_until_it_ends():
    shared = capacity(10, slots=1)
    (task,) = shared.received(shared.reserve("q.fifo", fifo=True), 1)
    shared.release(task, began=0.0, early=True)
    assert shared.reserve("another.fifo", fifo=True) is None
    shared.end_run(task, 0.0, shared.now)
    assert shared.reserve("another.fifo", fifo=True) is not None


def test_slots_that_are_held_while_nothing_runs_leave_it_to_celerys_prefetch_count():
    clock, idle = FakeClock(), True
    shared = FilledCapacity(1, clock, lambda: Slots(2, 20, idle=idle))
    shared.prefetch_count = 20
    shared.add_queue("q")
    fill(shared, 2)
    shared.look(clock.monotonic())
    assert asked(shared) == 0, "they may begin any moment"
    clock.advance(COLLECTED_AFTER_SECONDS)
    shared.look(clock.monotonic())
    poll = shared.reserve("q")
    assert poll.messages == 10
    shared.received(poll, 0)
    idle = False
    shared.look(clock.monotonic())
    assert asked(shared) == 0, "something runs"


def test_what_is_held_without_a_reservation_takes_no_capacity_of_fifo_queues_unless_it_is_of_one():
    shared = capacity(2)
    shared.hold(1)
    assert (shared.held, shared._fifo.messages) == (1, 0)
    shared.hold(1, fifo=True)
    assert (shared.held, shared._fifo.messages) == (2, 1)


def test_no_poll_begins_while_nobody_would_begin_what_it_brings():
    made = capacity(queues=1)
    came_round = made.now
    made.loop_late = lambda now: now - came_round
    made.clock.advance(STANDS_STILL_SECONDS)
    assert made.reserve("q0") is None
    came_round = made.now
    assert made.reserve("q0") is not None


def of_short_tasks():
    """Capacity of two slots that holds up to 80 messages."""
    clock = FakeClock()
    shared = capacity(80, slots=2, prefetch_seconds=1.0, clock=clock)
    run(shared, clock, 0.01, 1)
    shared.expect("q", clock.monotonic())
    return shared


@pytest.mark.parametrize("busy", [False, True])
def test_polls_of_fifo_queues_ask_for_what_slots_can_run_and_no_more(busy):
    shared = of_short_tasks()
    if busy:
        shared.expect("q.fifo", shared.now)
    assert [shared.reserve("q.fifo", fifo=True).messages for _ in range(2)] == [1, 1]
    assert shared.reserve("q.fifo", fifo=True) is None
    assert asked(shared) > 0, "other queues may have more"


def test_messages_of_fifo_queues_take_room_there_and_others_do_not():
    shared = of_short_tasks()
    for held in shared.hold(3):
        shared.rest(held, Wait.START)
    for held in shared.hold(2):
        shared.release(held, began=0.0, early=True)
        shared.deliveries.append(held)  # its run goes on
    shared.hold(1, fifo=True)
    assert shared.reserve("q.fifo", fifo=True) is not None
    shared.hold(1, fifo=True)
    assert shared.reserve("another.fifo", fifo=True) is None
    assert asked(shared) > 0


def test_what_is_asked_for_is_the_sum_of_the_polls_and_of_what_they_brought():
    polls = AskedFor()

    def counts():
        found = polls.counts
        by_queue = [dict(each) for each in (found.polls, found.unlikely, found.messages)]
        return (*by_queue, found.expected, found.fifo_expected)

    a10, a4 = (Reservation("a", False, messages, 20, 0.0, True) for messages in (10, 4))
    b3, b2 = (Reservation("b", False, messages, 20, 0.0) for messages in (3, 2))
    fifo = [Reservation("f", True, 1, 20, 0.0, True) for _ in range(3)]
    for each in (a10, a4, *fifo, b3, b2):
        polls.add(each)
    assert counts() == ({"a": 2, "b": 2, "f": 3}, {"b": 5}, {"a": 14, "b": 5, "f": 3}, 17, 3)
    assert set(polls.counts.likely) == {a10, a4, *fifo}
    for _ in range(2):
        polls.doubt(a10)
    assert counts() == ({"a": 2, "b": 2, "f": 3}, {"a": 10, "b": 5}, {"a": 14, "b": 5, "f": 3}, 7, 3)
    polls.doubt(a4)
    polls.doubt(fifo[0])
    unlikely = {"a": 14, "b": 5, "f": 1}
    assert counts() == ({"a": 2, "b": 2, "f": 3}, unlikely, {"a": 14, "b": 5, "f": 3}, 2, 2)
    assert [polls.counts.idle_polls(but_of) for but_of in ("", "f", "af", "abf")] == [5, 4, 2, 0]
    assert [polls.remove(a10) for _ in range(2)] == [True, False]
    polls.answered(a10, 10)  # too late
    assert counts() == ({"a": 1, "b": 2, "f": 3}, {"a": 4, "b": 5, "f": 1}, {"a": 4, "b": 5, "f": 3}, 2, 2)
    polls.answered(b3, 1)
    polls.answered(b2, 0)
    polls.answered(fifo[1], 1)
    assert counts() == ({"a": 1, "f": 2}, {"a": 4, "f": 1}, {"a": 4, "b": 1, "f": 3}, 3, 2)
    assert polls.counts.likely == [fifo[2]], "what has come is not in flight"
    polls.remove_all("f")
    assert counts() == ({"a": 1}, {"a": 4}, {"a": 4, "b": 1, "f": 1}, 2, 1), "what has come is kept"
    assert [polls.remove(b3) for _ in range(2)] == [True, False]
    assert counts() == ({"a": 1}, {"a": 4}, {"a": 4, "f": 1}, 1, 1)


def of_two_queues():
    shared = capacity(12, 0)
    for name in ("a", "another"):
        shared.add_queue(name)
        shared.expect(name, shared.now)
    return shared


def last_poll_is_empty(shared, _first, last):
    shared.received(last, 0)


def last_poll_waits_in_vain(shared, _first, last):
    shared.clock.advance(LIKELY_SECONDS)
    shared.look(shared.now)
    shared.taken(last, shared.now)


def queue_is_removed(shared, _first, last):
    shared.remove_queue("a")
    shared.taken(last, shared.now)


def removed_queue_has_a_last_poll(shared, first, last):
    queue_is_removed(shared, first, last)
    shared.answered(first, 1, shared.now)
    shared.taken(first, shared.now)
    shared.expect("a", shared.now)


def removed_queue_is_consumed_again(shared, first, last):
    removed_queue_has_a_last_poll(shared, first, last)
    shared.add_queue("a")
    shared.expect("a", shared.now)
    shared.received(shared.reserve("a"), 1)
    shared.release()


def last_poll_is_given_up(shared, _first, last):
    shared.taken(last, shared.now)


@pytest.mark.parametrize(
    ("happens", "busy"),
    [
        (last_poll_is_given_up, True),
        (last_poll_is_empty, False),
        (last_poll_waits_in_vain, False),
        (queue_is_removed, False),
        (removed_queue_has_a_last_poll, False),
        (removed_queue_is_consumed_again, True),
    ],
)
def test_a_busy_queue_shares_with_another_that_is_not_polled_until_that_brings_nothing(happens, busy):
    shared = of_two_queues()
    first, last = shared.reserve("a"), shared.reserve("a")
    shared.received(first, 0)  # the other poll may bring something yet
    happens(shared, first, last)
    assert asked(shared, "another") == (6 if busy else BATCH_ENTRIES)


def with_turns(*strict, **slots):
    """Capacity of queues that have turns: fair ones, or of these in their order."""
    options = Options.parse({"queues": {name: {} for name in strict}})
    turns = Turns("strict" if strict else "fair", options.for_queue)
    turns.slots = lambda: Slots(**slots)
    shared = FilledCapacity(slots=turns.slots, turns=turns)
    for queue in strict:
        turns.add_queue(queue)
        shared.add_queue(queue)
    return shared, turns


def test_a_run_that_was_acknowledged_when_it_began_has_its_turn_until_it_ends():
    shared, turns = with_turns(number=2, prefetch_count=2)
    (task,) = shared.hold()
    turns.begin(task)
    shared.release(task, began=0.0, early=True)
    assert (turns.held("q"), turns.begun("q")) == (1, 1)
    shared.end_run(task, 0.0, shared.now)
    assert (turns.held("q"), turns.begun("q")) == (0, 0)


def test_what_other_consumers_hold_is_left_out_when_places_are_counted_anew():
    shared, turns = with_turns(number=2, prefetch_count=2)
    held, _ = shared.hold(2)
    (other,) = capacity().hold()
    (of_nobody,) = capacity().hold()
    of_nobody.consumer = None
    waiter = shared.wait("q")
    shared.look(0.0, [held, other, of_nobody])
    assert (shared.held, turns.held("q")) == (1, 1)
    assert waiter.reservation.messages == 1


def test_queues_that_may_overtake_another_are_not_in_its_rotation():
    shared, _ = with_turns("first", "second", "last", number=1, prefetch_count=1)
    assert shared.reserve("last").wait == WAIT_TIME_SECONDS


def test_a_queue_with_enough_ahead_keeps_none_waiting_that_it_may_overtake():
    shared, _ = with_turns("polled", "polled too", "first", "last", number=2, prefetch_count=2)
    shared.hold(queue="first")  # that is enough of long tasks
    for queue in ("polled", "polled too"):
        assert asked(shared, queue) == 1
    (task,) = shared.hold(queue="polled")
    first, last = shared.wait("first"), shared.wait("last")
    assert last.reservation is None
    shared.release(task, began=0.0)
    assert first.reservation is None
    assert last.reservation.messages == 1


def test_what_changes_for_one_queue_is_not_looked_at_for_all_that_wait():
    shared, _ = with_turns(number=1, prefetch_count=1)
    looked = []
    shared.loop_late = lambda now: looked.append(now) or 0.0

    def looks(act, *args):
        looked.clear()
        act(*args)
        return len(looked)

    poll = shared.reserve("polled")
    shared.hold()
    assert [looks(shared.wait, name) for name in "abcd"] == [1, 2, 2, 2], "the first one's, and its own"
    assert looks(shared.expect, "polled", shared.now) == 1
    assert looks(shared.answered, poll, 1, shared.now) == 1
    assert [looks(shared.taken, poll, shared.now) for _ in range(2)] == [1, 0]
    assert looks(shared.serve, shared.now) == 4


def test_the_pace_of_runs_that_were_acknowledged_when_they_began_is_forgotten_after_a_rest():
    clock = FakeClock()
    shared = capacity(8, slots=2, prefetch_seconds=1, clock=clock)
    for _ in range(200):
        (task,) = shared.received(shared.reserve("q"), 1)
        shared.release(task, began=clock.monotonic(), early=True)
        clock.advance(0.01)
        shared.end_run(task, clock.monotonic() - 0.01, clock.monotonic())
    clock.advance(60)
    assert asked(shared) == 8
