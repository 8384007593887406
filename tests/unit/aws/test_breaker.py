"""Once a dependency has not answered one request, nobody but the probe asks it."""

import logging
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock

from celery_sqs_visibility.aws.breaker import (
    MAX_PAUSE_SECONDS,
    PAUSE_SECONDS,
    STEADY_SECONDS,
    Breaker,
    Circuit,
)
from celery_sqs_visibility.errors import AccessDeniedError

SILENCE = TimeoutError("no answer in 3 s")


class Dependency:
    """A breaker whose thread runs when the test says so; `probes` are what the next probes meet."""

    def __init__(self, *probes, start=None):
        self.clock = FakeClock()
        self.probes = list(probes)
        self.threads = []
        self.waited = []
        self.breaker = Breaker(
            "Redis",
            self._probe,
            lambda error: isinstance(error, TimeoutError),
            start or self._start,
            self.clock,
            self._wait,
        )

    def _start(self, target, name):
        self.threads.append((target, name))
        return threading.current_thread()

    def _wait(self, seconds):
        self.waited.append(seconds)
        self.clock.advance(seconds)

    def _probe(self):
        with pytest.raises(ValueError, match="not asked again until it answers"):
            self.ask()  # nobody is let through before the probe has an answer
        if (met := self.probes.pop(0)) is not None:
            raise met

    def ask(self, answer="answer", seconds=0.0):
        def request():
            self.clock.advance(seconds)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return self.breaker.call(request, ValueError)


def test_after_one_request_without_an_answer_a_thread_probes_and_the_others_do_not_ask():
    one = Dependency(SILENCE, None)
    assert one.ask() == "answer"
    with pytest.raises(TimeoutError):
        one.ask(SILENCE)
    for _ in range(3):
        with pytest.raises(ValueError, match="no answer in 3 s; it is not asked again until it answers"):
            one.ask()
    ((probe, name),) = one.threads
    assert name == "sqs-probe"
    probe()
    assert (one.waited, one.probes) == ([1.0, 1.0], [])
    assert one.ask() == "answer"


@pytest.mark.parametrize("answer", [KeyError("refused"), AccessDeniedError("no")])
def test_a_refusal_is_an_answer(answer):
    one = Dependency(answer)
    with pytest.raises(type(answer)):
        one.ask(answer)
    assert one.ask() == "answer"
    with pytest.raises(TimeoutError):
        one.ask(SILENCE)
    one.threads[0][0]()
    assert one.ask() == "answer"


def test_requests_under_way_open_it_once_and_not_again_when_they_end_late():
    one = Dependency(None)
    for _ in range(2):
        one.breaker.unanswered("no answer", since=one.clock.monotonic())
    assert len(one.threads) == 1
    since = one.clock.monotonic()
    one.threads[0][0]()
    one.breaker.unanswered("no answer", since)
    assert one.ask() == "answer"


def test_without_a_thread_to_probe_everybody_goes_on_asking():
    one = Dependency(start=lambda _target, _name: None)
    with pytest.raises(TimeoutError):
        one.ask(SILENCE)
    assert one.ask() == "answer"


def test_the_log_says_once_that_it_does_not_answer_and_once_that_it_does(caplog):
    caplog.set_level(logging.INFO)
    one = Dependency(SILENCE, None)
    with pytest.raises(TimeoutError):
        one.ask(SILENCE)
    one.threads[0][0]()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "Redis does not answer, and is left alone until it answers a probe: no answer in 3 s"),
        ("INFO", "Redis answers again after 2 s"),
    ]


def test_a_later_answer_to_another_process_closes_it_and_one_thread_probes():
    one = Dependency()
    for seconds in (1, 2):
        one.clock.advance(seconds)
        one.breaker.unanswered("no answer", one.clock.monotonic())
        one.breaker.answered(one.clock.monotonic() - 0.5)
        assert one.breaker.error == "no answer", "that answer came before"
        one.breaker.answered(one.clock.monotonic() + 0.5)
        assert (one.breaker.error, one.ask()) == ("", "answer")
        one.clock.advance(1)
    ((probe, _name),) = one.threads
    probe()
    one.breaker.unanswered("no answer", one.clock.monotonic())
    assert len(one.threads) == 2


def test_who_follows_it_is_told_since_when_requests_are_passed_on():
    one, told = Dependency(None), []
    one.breaker.follow(told.append)
    one.breaker.unanswered("no answer", one.clock.monotonic())
    one.breaker.follow(told.append)
    one.threads[0][0]()
    assert told == [-math.inf, math.inf, math.inf, one.clock.monotonic()]


class ClosingLock:
    """A breaker's lock, once given back, lets another thread close the circuit, once."""

    def __init__(self, breaker, at):
        self.close = [lambda: breaker.answered(at)]
        self.lock = breaker._lock

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()
        if self.close:
            self.close.pop()()


def test_it_may_be_closed_at_the_moment_at_which_its_thread_begins_to_wait():
    one = Dependency()
    now = one.clock.monotonic()
    one.breaker.unanswered("no answer", now)
    one.breaker._lock = ClosingLock(one.breaker, now + 0.5)
    one.breaker._probe = lambda: None
    one.threads[0][0]()
    assert one.waited == [PAUSE_SECONDS], "a thread that is to wait for ever raises, and nobody probes again"
    one.breaker.unanswered("no answer", one.clock.monotonic())
    assert len(one.threads) == 2


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
