"""How many messages to hold, and to ask for: a busy queue at its pace, idle queues in rotation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.prefetch import (
    IDLE_QUEUE_PERIOD_SECONDS,
    LONG_TASK_SECONDS,
    UNLIMITED,
    Ask,
    Slots,
    Snapshot,
    ask_for,
    message_limit,
    min_worthwhile_messages,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS

SLOTS = st.builds(
    lambda number, times: Slots(number, number * times), st.integers(1, 500), st.integers(1, 10)
)
DURATIONS = st.none() | st.floats(0, 1000)


@given(SLOTS, st.floats(0, 1e6), st.none() | st.floats(LONG_TASK_SECONDS, 1e5), st.floats(0, 60), DURATIONS)
def test_of_long_tasks_and_without_prefetch_seconds_nothing_is_held_beyond_what_runs(
    slots, pace, long, seconds, lasts
):
    assert message_limit(slots, pace, long, seconds) == slots.number
    assert message_limit(slots, pace, lasts, 0) == slots.number


@pytest.mark.parametrize(
    ("slots", "pace", "lasts", "seconds", "limit"),
    [
        (Slots(2, 8), 0, 0.9, 1, 4),
        (Slots(2, 8), 0, 0.5, 1, 6),
        (Slots(2, 8), 0, 0.1, 1, 8),
        (Slots(2, 8), 0, 0.0, 1, 8),
        (Slots(2, 2), 1000, 0.002, 1, 1000),
        (Slots(2, 2), 1000, 0.002, 0.1, 100),
        (Slots(2, 2), 1e9, 0, 60, UNLIMITED),
    ],
)
def test_of_shorter_tasks_what_runs_in_prefetch_seconds_is_held_and_of_few_up_to_celerys_count(
    slots, pace, lasts, seconds, limit
):
    assert message_limit(slots, pace, lasts, seconds) == limit


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 200))
def test_a_slot_that_may_stand_idle_is_worth_a_request_and_beyond_that_a_full_batch(held, slots, more):
    idle = held < slots or not more
    assert min_worthwhile_messages(held, slots, slots + more) == (1 if idle else min(BATCH_ENTRIES, more))


@given(SLOTS, st.floats(0, 1e4), DURATIONS, st.floats(0, 60))
def test_an_empty_process_always_asks(slots, pace, lasts, seconds):
    limit = message_limit(slots, pace, lasts, seconds)
    assert limit >= min_worthwhile_messages(0, slots.number, limit)


@st.composite
def snapshots(draw, **fixed):
    slots = draw(st.integers(1, 200))
    prefetch_count = slots * draw(st.integers(1, 6))
    fifo = draw(st.booleans())
    polled = draw(st.booleans())
    queues = draw(st.integers(1, 300))
    unpolled = draw(st.integers(0, queues - 1))
    limit = slots + draw(st.just(0) | st.integers(0, 2000))
    drawn = Snapshot(
        slots=slots,
        limit=limit,
        prefetch_count=prefetch_count,
        occupied=draw(st.integers(0, slots) | st.integers(0, 2 * limit)),
        expected=draw(st.just(0) | st.integers(0, 150)),
        unlikely=draw(st.just(0) | st.integers(0, 300)),
        idle_polls=draw(st.just(0) | st.integers(0, 300)),
        queues=queues,
        unpolled=unpolled,
        unpolled_busy=draw(st.integers(0, unpolled)),
        busy=draw(st.booleans()),
        polled=polled,
        own_unlikely=draw(st.integers(0, 10)) if polled else 0,
        most=1 if fifo else BATCH_ENTRIES,
        fifo_capacity=draw(st.integers(0, slots)) if fifo else None,
    )
    return drawn._replace(**fixed)


def messages(now):
    ask = ask_for(now)
    return ask.messages if ask else 0


@given(snapshots())
def test_a_poll_asks_for_what_sqs_allows(now):
    ask = ask_for(now)
    assert ask is None or (1 <= ask.messages <= now.most and 1 <= ask.wait <= WAIT_TIME_SECONDS)


@given(snapshots(busy=True), st.integers(0, 300), st.integers(0, 300))
def test_a_busy_queue_is_asked_for_no_more_than_may_be_held_whatever_idle_ones_were(now, unlikely, polls):
    assert messages(now) <= max(0, now.limit - now.occupied - now.expected - now.own_unlikely)
    other = now._replace(unlikely=unlikely, idle_polls=polls, unpolled=now.unpolled_busy)
    assert messages(now) == messages(other)


@given(snapshots(busy=False))
def test_beyond_what_may_be_held_idle_queues_are_asked_for_one_message_each_and_a_bounded_number(now):
    asked = messages(now)
    if now.occupied + now.expected + now.unlikely + asked > now.limit:
        assert asked <= 1
        if asked:
            assert now.idle_polls < max(now.limit - now.occupied - now.expected, now.spare)
            assert not now.polled


@given(snapshots())
def test_messages_that_idle_queues_may_bring_besides_are_bounded(now):
    more = max(1, now.prefetch_count - now.slots, now.queues // IDLE_QUEUE_PERIOD_SECONDS)
    assert 0 <= now.spare <= now.slots + more
    if now.limit == now.slots and now.spare:
        assert now.occupied < now.slots, "of long tasks nothing is asked for that finds no slot free"
        assert now.occupied + now.spare <= now.slots + more


@given(snapshots(queues=1, unlikely=0, idle_polls=0, unpolled=0, unpolled_busy=0, expected=0))
def test_one_queue_alone_has_all_the_capacity(now):
    now = now._replace(unlikely=now.own_unlikely)
    free = now.limit - now.occupied - now.own_unlikely
    held = now.occupied + now.own_unlikely
    if now.fifo_capacity is not None:
        expected = max(0, min(1, free, now.fifo_capacity))
    elif free < min_worthwhile_messages(held, now.slots, now.limit):
        expected = 0
    else:
        expected = min(BATCH_ENTRIES, free)
    assert messages(now) == expected
    if expected and now.limit > now.occupied:
        assert ask_for(now).wait == WAIT_TIME_SECONDS


@given(snapshots(occupied=0, expected=0, unlikely=0, idle_polls=0, polled=False, own_unlikely=0))
def test_a_process_that_holds_and_has_asked_for_nothing_asks(now):
    if now.fifo_capacity != 0:
        assert messages(now) >= 1


@given(snapshots(most=1, fifo_capacity=0))
def test_a_fifo_queue_whose_messages_have_all_slots_is_not_asked(now):
    assert ask_for(now) is None


@given(snapshots(busy=False, polled=False, own_unlikely=0, unlikely=0, expected=0))
def test_where_queues_take_turns_each_is_polled_twice_in_20_seconds_at_the_most(now):
    polls, wait = 0, None
    while (ask := ask_for(now._replace(idle_polls=polls, unlikely=polls))) is not None and polls < now.queues:
        polls, wait = polls + 1, ask.wait
    if wait is not None and wait < WAIT_TIME_SECONDS:
        assert polls / wait <= max(1, now.queues / IDLE_QUEUE_PERIOD_SECONDS)


@given(snapshots(), st.integers(1, 300), st.integers(0, 300))
def test_queues_that_may_overtake_take_no_turns_from_the_others(now, overtakers, unpolled):
    unpolled = now.unpolled + min(unpolled, overtakers)
    among_them = now._replace(queues=now.queues + overtakers, overtakers=overtakers, unpolled=unpolled)
    alone, ask = ask_for(now), ask_for(among_them)
    assert not alone or (ask and ask.wait == alone.wait)
    assert not ask or alone or now.queues == 1, "a queue that is alone waits for a whole batch"


@pytest.mark.parametrize(
    ("queues", "slots", "ask"),
    [
        (1, 2, Ask(2, 20)),
        (5, 2, Ask(1, 20)),
        (20, 2, Ask(1, 4)),
        (50, 2, Ask(1, 1)),
        (200, 2, Ask(1, 1)),
        (200, 100, Ask(1, 20)),
        (5, 100, Ask(10, 20)),
    ],
)
def test_of_an_idle_worker_with_celerys_multiplier_of_4(queues, slots, ask):
    now = Snapshot(slots, slots, 4 * slots, queues=queues, unpolled=queues - 1)
    assert ask_for(now) == ask


@given(
    st.integers(1, 200),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
)
def test_a_queue_that_may_overtake_is_asked_whatever_others_hold_until_enough_of_it_waits(
    slots, beyond, occupied, ahead, busy, fifo
):
    now = Snapshot(
        slots=slots,
        limit=slots + beyond,
        prefetch_count=slots,
        occupied=occupied,
        queues=100,
        idle_polls=100,
        busy=busy,
        most=1 if fifo else BATCH_ENTRIES,
        fifo_capacity=0 if fifo else None,
        ahead=ahead,
    )
    ask = ask_for(now)
    if ahead == 0:
        assert ask
        assert ask.wait == WAIT_TIME_SECONDS, "it is not in the rotation"
    if occupied >= slots + beyond and ask:
        enough = 1 if fifo else max(1, slots // BATCH_ENTRIES, beyond)
        assert ahead + ask.messages <= enough


@given(st.integers(0, 12), st.sampled_from([None, 0, 3]))
def test_a_queue_asks_for_no_more_than_it_may_run(room, ahead):
    now = Snapshot(slots=50, limit=50, prefetch_count=50, room=room, ahead=ahead)
    ask = ask_for(now)
    assert (ask.messages if ask else 0) == min(room, BATCH_ENTRIES)


@pytest.mark.parametrize("lasts", [None, 0.001, 0.9, 100])
def test_where_tasks_collect_messages_celerys_prefetch_count_counts(lasts):
    assert message_limit(Slots(2, 50, collecting=True), 0, lasts, 1) == 50
    assert Slots(2, 50, collecting=True).runnable == 50
