"""Once a dependency has not answered one request, nobody but the probe asks it."""

from __future__ import annotations

import logging
import math
import threading

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.breaker import PAUSE_SECONDS, Breaker
from celery_sqs_visibility.aws.fake_object_store import FakeObjectStore
from celery_sqs_visibility.aws.object_store import PROBED_KEY, GuardedObjectStore
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    StoreError,
    StoreUnavailableError,
    UnavailableError,
)
from celery_sqs_visibility.stores.guarded import GuardedStore
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired, Renewal

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


class Silent(MemoryStore):
    """Does not answer while it is told so."""

    silent = False

    def release(self, key, owner):
        self._answer()
        return super().release(key, owner)

    def acquire(self, *args):
        self._answer()
        return super().acquire(*args)

    def _answer(self):
        if self.silent:
            raise StoreUnavailableError("no answer")


class Threads:
    """Threads that run when the test says so, once the time has come for a probe."""

    def __init__(self):
        self.clock = FakeClock()
        self.targets = []

    def start(self, target, _name):
        self.targets.append(target)
        return threading.current_thread()

    def run(self):
        self.clock.advance(PAUSE_SECONDS)
        self.targets.pop()()


def test_a_guarded_store_is_as_the_store_until_that_is_silent_and_when_it_has_answered_a_probe():
    store, threads = Silent(), Threads()
    guarded = GuardedStore(store, threads.start, threads.clock)
    assert guarded.acquire("key", "one", 60) == Acquired(None)
    assert guarded.renew([Renewal("key", "one", 60)]) == [True]
    assert guarded.save("key", "one", 1)
    assert guarded.finish("key", "one", 60)
    store.silent = True
    with pytest.raises(StoreUnavailableError):
        guarded.claim("other", 60)
    with pytest.raises(StoreError, match="not asked again"):
        guarded.release("key", "one")
    assert guarded.error == "no answer"
    store.silent = False
    threads.run()
    assert (guarded.error, guarded.claim("other", 60)) == ("", True)


def test_a_guarded_store_is_not_asked_where_another_process_had_no_answer():
    threads = Threads()
    guarded = GuardedStore(MemoryStore(), threads.start, threads.clock)
    guarded.unanswered("no answer elsewhere", threads.clock.monotonic())
    with pytest.raises(StoreError, match="no answer elsewhere; it is not asked again"):
        guarded.claim("key", 60)
    threads.run()
    assert guarded.claim("key", 60)


def test_a_guarded_store_is_asked_again_where_another_process_had_an_answer_and_one_thread_probes():
    threads = Threads()
    guarded = GuardedStore(MemoryStore(), threads.start, threads.clock)
    for seconds in (1, 2):
        threads.clock.advance(seconds)
        guarded.unanswered("no answer", threads.clock.monotonic())
        guarded.answered(threads.clock.monotonic() - 0.5)
        assert guarded.error == "no answer", "that answer came before"
        guarded.answered(threads.clock.monotonic() + 0.5)
        assert (guarded.error, guarded.claim(f"key {seconds}", 60)) == ("", True)
        threads.clock.advance(1)
    (probe,) = threads.targets
    probe()
    guarded.unanswered("no answer", threads.clock.monotonic())
    assert len(threads.targets) == 2


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


def test_who_follows_a_guarded_store_is_told_since_when_it_answers():
    threads, told = Threads(), []
    guarded = GuardedStore(MemoryStore(), threads.start, threads.clock)
    guarded.follow(told.append)
    guarded.unanswered("no answer", threads.clock.monotonic())
    guarded.follow(told.append)
    threads.run()
    assert told == [-math.inf, math.inf, math.inf, threads.clock.monotonic()]


TIMEOUT = UnavailableError("no answer", code="ReadTimeoutError", action="PutObject")


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (TIMEOUT, True),
        (UnavailableError("nobody", code="EndpointConnectionError"), True),
        (UnavailableError("internal error", code="InternalError"), False),
        (UnavailableError("it comes too slowly", code="TooSlow"), False),
        (AccessDeniedError("no"), False),
    ],
)
def test_s3_is_left_alone_after_silence_and_not_after_an_error(error, opens):
    objects, threads = FakeObjectStore(), Threads()
    guarded = GuardedObjectStore(objects, threads.start, threads.clock)
    objects.fail_next("PutObject", error)
    with pytest.raises(type(error)):
        guarded.put("a", b"1")
    assert bool(threads.targets) == opens
    if opens:
        with pytest.raises(UnavailableError, match="not asked again") as raised:
            guarded.get("a", 1)
        assert (raised.value.code, raised.value.action) == ("CircuitOpen", "GetObject")
        with pytest.raises(UnavailableError):
            guarded.delete(["a"])
        assert objects.calls == ["PutObject"]
        objects.objects[PROBED_KEY] = b"12"  # whatever it is, that is an answer
        threads.run()
    guarded.put("a", b"1")
    assert guarded.get("a", 1) == b"1"
    assert guarded.delete(["a"]).failed == {}
    assert guarded.bucket == objects.bucket
