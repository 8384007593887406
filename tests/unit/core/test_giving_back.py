"""What a consumer gives back, when, and for how long it waits."""

import math

import pytest
from support import factories

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.giving_back import (
    FLUSH_SECONDS,
    HAND_BACK_SECONDS,
    OWN_POLL_SECONDS,
    POLLS_IN_FLIGHT_SECONDS,
    GivingBack,
    Phase,
)
from celery_sqs_visibility.core.settlements import RELEASE, Hide, Lapse, Why

NOW, WAIT = 1000.0, 20
A, B = factories.sqs_queue("a"), factories.sqs_queue("b")


@pytest.fixture
def state():
    return GivingBack()


def message(queue=A, name="m1", receives=2, state=State.HELD):
    made = factories.delivery(queue, message_id=name, receive_count=receives)
    made.state = state
    return made


def released(seconds):
    return Hide(seconds, Why.RELEASED)


def test_a_consumer_stops_and_closes_and_may_consume_again(state):
    phases = [state.phase]
    for step in (state.stop, state.close, state.stop, state.consume, state.close):
        step()
        phases.append(state.phase)
    assert phases == [
        Phase.CONSUMING,
        Phase.STOPPED,
        Phase.CLOSED,
        Phase.CLOSED,
        Phase.CONSUMING,
        Phase.CLOSED,
    ]


@pytest.mark.parametrize(("queue", "expected"), [("a", ["1"]), ("b", ["3"]), (None, ["1", "3"])])
def test_what_has_not_begun_is_given_back_of_one_queue_or_of_all(state, queue, expected):
    held = [message(name="1"), message(name="2", state=State.DISPATCHED), message(B, "3")]
    held.append(message(name="4", state=State.COPYING))
    assert [each.facts.message_id for each in state.unstarted(held, queue)] == expected


def test_the_first_of_each_polled_queue_ends_its_long_poll(state):
    held = [message(name="1"), message(B, "2"), message(name="3")]
    assert state.first(held, {"a"}) == held[:1]
    assert state.first(held, {"a", "b"}) == held[:2]


@pytest.mark.parametrize(
    ("receives", "ending_at", "paused_at", "expected"),
    [
        (1, NOW - 5, None, 0),
        (2, NOW - 5, None, 15),
        (2, NOW - 5.5, None, 15),
        (2, NOW - 25, None, 0),
        (2, None, NOW - 7, 13),
        (2, NOW - 5, NOW - 7, 15),
        (2, None, None, 0),
    ],
    ids=["first receive", "ends", "rounded up", "polls are over", "paused", "ends while paused", "neither"],
)
def test_what_arrives_late_is_hidden_until_polls_that_began_before_are_over(
    state, receives, ending_at, paused_at, expected
):
    if ending_at is not None:
        state.end_by(NOW + 25, NOW, ending_at)
        state.end_by(NOW + 9, NOW, NOW)  # told again, it began when it began
    assert state.late(message(receives=receives), paused_at, WAIT, NOW) == released(expected)


def test_what_this_consumer_gave_back_goes_on_at_once_until_the_next_pause_or_the_end(state):
    one, other = message(), message(B)
    state.pause("a")  # nothing was given back before
    state.note([one, other])
    late = [state.late(each, NOW, WAIT, NOW) for each in (one, other)]
    assert late == [RELEASE, RELEASE]
    state.pause("a")
    assert state.late(one, NOW, WAIT, NOW) == released(WAIT)
    assert state.late(other, NOW, WAIT, NOW) == RELEASE
    state.end_by(NOW, NOW, NOW)
    assert state.late(other, None, WAIT, NOW) == released(WAIT)
    state.note([other])
    state.end_by(NOW, NOW, NOW)
    assert state.late(other, None, WAIT, NOW) == RELEASE


def test_of_a_queue_that_is_being_deleted_nothing_is_given_back_until_it_is_consumed_anew(state):
    state.delete("a")
    state.note([message()])
    assert state.late(message(), None, WAIT, NOW) == Lapse()
    assert state.late(message(B), None, WAIT, NOW) == released(0)
    state.consume_queue("b")
    assert state.late(message(), None, WAIT, NOW) == Lapse()
    state.consume_queue("a")
    assert state.late(message(), None, WAIT, NOW) == RELEASE


def test_waits_are_bounded_and_by_the_end_of_the_process_too(state):
    assert state.ends == math.inf
    assert state.own_polls_end() == -math.inf
    assert state.polls_end(NOW) == NOW + POLLS_IN_FLIGHT_SECONDS
    assert state.own_poll_ends(NOW) == NOW + OWN_POLL_SECONDS
    assert state.flush_ends(NOW) == NOW + FLUSH_SECONDS
    state.note_released(NOW)
    assert state.own_polls_end() == NOW + OWN_POLL_SECONDS
    state.end_by(NOW + 1, NOW + 0.5, NOW)
    assert state.polls_end(NOW) == NOW + 0.5
    assert state.own_poll_ends(NOW) == NOW + 1
    assert state.flush_ends(NOW) == NOW + 1 + HAND_BACK_SECONDS
