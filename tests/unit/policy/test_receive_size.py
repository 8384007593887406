"""How much to ask for: within what may be held, at a busy queue's pace, and an idle queue in its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.prefetch import enough_to_ask
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.receive_size import TURN_SECONDS, Ask, Snapshot, ask_for, spare


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
        fifo_room=draw(st.integers(0, slots)) if fifo else None,
    )
    return replace(drawn, **{name: value for name, value in fixed.items() if value is not None})


def messages(now):
    ask = ask_for(now)
    return ask.messages if ask else 0


@given(snapshots())
def test_a_poll_asks_for_what_sqs_allows(now):
    ask = ask_for(now)
    assert ask is None or (1 <= ask.messages <= now.most and 1 <= ask.wait <= WAIT_TIME_SECONDS)


@given(snapshots(busy=True))
def test_a_busy_queue_is_asked_for_no_more_than_may_be_held(now):
    assert messages(now) <= max(0, now.limit - now.occupied - now.expected - now.own_unlikely)


@given(snapshots(busy=True), st.integers(0, 300), st.integers(0, 300))
def test_what_idle_queues_were_asked_for_is_nothing_to_a_busy_one(now, unlikely, polls):
    other = replace(now, unlikely=unlikely, idle_polls=polls, unpolled=now.unpolled_busy)
    assert messages(now) == messages(other)


@given(snapshots(busy=False))
def test_beyond_what_may_be_held_idle_queues_are_asked_for_one_message_each_and_so_many_at_the_most(now):
    asked = messages(now)
    if now.occupied + now.expected + now.unlikely + asked > now.limit:
        assert asked <= 1
        if asked:
            assert now.idle_polls < max(now.limit - now.occupied - now.expected, spare(now))
            assert not now.polled


@given(snapshots())
def test_what_idle_queues_may_bring_beside_the_rest_is_bounded(now):
    more = max(1, now.prefetch_count - now.slots, now.queues // TURN_SECONDS)
    assert 0 <= spare(now) <= now.slots + more
    if now.limit == now.slots and spare(now):
        assert now.occupied < now.slots, "of long tasks nothing is asked for that finds no slot free"
        assert now.occupied + spare(now) <= now.slots + more


@given(snapshots(queues=1, unlikely=0, idle_polls=0, unpolled=0, unpolled_busy=0, expected=0))
def test_one_queue_alone_has_all_the_room(now):
    now = replace(now, unlikely=now.own_unlikely)
    free = now.limit - now.occupied - now.own_unlikely
    held = now.occupied + now.own_unlikely
    if now.fifo_room is not None:
        expected = max(0, min(1, free, now.fifo_room))
    elif free < enough_to_ask(held, now.slots, now.limit, BATCH_ENTRIES):
        expected = 0
    else:
        expected = min(BATCH_ENTRIES, free)
    assert messages(now) == expected
    if expected and now.limit > now.occupied:
        assert ask_for(now).wait == WAIT_TIME_SECONDS


@given(snapshots(occupied=0, expected=0, unlikely=0, idle_polls=0, polled=False, own_unlikely=0))
def test_who_holds_nothing_and_asks_for_nothing_asks(now):
    if now.fifo_room != 0:
        assert messages(now) >= 1


@given(snapshots(most=1, fifo_room=0))
def test_a_fifo_queue_whose_messages_have_all_slots_is_not_asked(now):
    assert ask_for(now) is None


@given(snapshots(busy=False, polled=False, own_unlikely=0, unlikely=0, expected=0))
def test_where_queues_take_turns_each_is_polled_twice_in_20_seconds_at_the_most(now):
    polls, wait = 0, None
    while (ask := ask_for(replace(now, idle_polls=polls, unlikely=polls))) is not None and polls < now.queues:
        polls, wait = polls + 1, ask.wait
    if wait is not None and wait < WAIT_TIME_SECONDS:
        assert polls / wait <= max(1, now.queues / TURN_SECONDS)


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
