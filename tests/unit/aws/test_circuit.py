"""Whether a dependency is asked, and when it is probed."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.breaker import (
    MAX_PAUSE_SECONDS,
    PAUSE_SECONDS,
    STEADY_SECONDS,
    Circuit,
)


def test_one_request_without_an_answer_opens_it_and_an_answered_probe_closes_it():
    circuit = Circuit().unanswered(since=7.0, now=10.0)
    assert (circuit.is_open, circuit.probe_at) == (True, 10.0 + PAUSE_SECONDS)
    circuit = circuit.probed(14.0, answered=False)
    assert circuit.probe_at == 14.0 + PAUSE_SECONDS
    circuit = circuit.probed(15.0, answered=True)
    assert (circuit.is_open, circuit.closed_at) == (False, 15.0)


def test_a_request_that_was_made_before_the_last_answered_probe_says_nothing():
    circuit = Circuit().unanswered(since=0.0, now=3.0).probed(4.0, answered=True)
    assert circuit.unanswered(since=3.9, now=12.0) is circuit
    assert circuit.unanswered(since=4.0, now=12.0).is_open


def test_an_answer_to_another_process_closes_what_was_opened_before_it():
    circuit = Circuit().unanswered(since=0.0, now=3.0)
    assert circuit.answered_elsewhere(2.9) is circuit
    closed = circuit.answered_elsewhere(3.1)
    assert (closed.is_open, closed.closed_at) == (False, 3.1)
    assert closed.probed(4.0, answered=False) is closed, "the probe was sent before"
    assert closed.unanswered(since=3.0, now=6.0) is closed


def test_what_answers_probes_alone_is_left_alone_for_longer_each_time_until_it_has_been_steady():
    circuit, now, pauses = Circuit(), 0.0, []
    for _ in range(6):
        circuit = circuit.unanswered(since=now, now=now)
        pauses.append(circuit.probe_at - now)
        now = circuit.probe_at
        circuit = circuit.probed(now, answered=True)
    assert pauses == [1, 2, 4, 8, 16, MAX_PAUSE_SECONDS]
    now += STEADY_SECONDS
    assert circuit.unanswered(since=now, now=now).probe_at == now + PAUSE_SECONDS


EVENTS = st.lists(
    st.tuples(st.sampled_from(["unanswered", "probe answered", "probe unanswered"]), st.floats(0, 40))
)


@given(EVENTS, st.floats(0, 20))
def test_open_it_is_probed_soon_and_only_an_answered_probe_closes_it(events, lasted):
    circuit, now = Circuit(), 100.0
    for what, seconds in events:
        now += seconds
        before = circuit
        if what == "unanswered":
            circuit = circuit.unanswered(now - lasted, now)
            assert circuit.is_open or now - lasted < before.closed_at
            assert circuit is before or not before.is_open
        elif circuit.is_open:
            circuit = circuit.probed(now, answered=what == "probe answered")
            assert circuit.is_open == (what != "probe answered")
        if circuit.is_open:
            assert circuit.probe_at <= now + MAX_PAUSE_SECONDS
        else:
            assert circuit.probe_at == math.inf
