"""One worker counts the queues, at times of its own, and what it does not know is not told."""

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock

from celery_sqs_visibility.errors import StoreError, UnavailableError
from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.metrics import names, worker_metrics
from celery_sqs_visibility.operate.metrics.sampler import Leadership, Sampler
from celery_sqs_visibility.operate.metrics.worker_metrics import Periodic, next_time
from celery_sqs_visibility.stores.memory import MemoryStore

INTERVAL = 60.0


def workers(clock, store, *owners):
    return [
        Leadership(store, lambda: "key", owner, INTERVAL, clock, lambda low, _high: low) for owner in owners
    ]


def test_one_of_several_workers_is_the_leader_and_stays_it(clock):
    first, second = workers(clock, MemoryStore(clock), "a", "b")
    for _ in range(9):
        assert [first.acquire(), second.acquire()] == [True, False]
        clock.advance(INTERVAL)


def test_a_leader_that_dies_is_followed_soon_and_one_that_resigns_at_once(clock):
    first, second, third = workers(clock, MemoryStore(clock), "a", "b", "c")
    assert [first.acquire(), second.acquire()] == [True, False]  # the first one dies
    found = []
    for _ in range(4):
        clock.advance(INTERVAL)
        found.append(second.acquire())
    assert found == [False, False, True, True]
    second.resign()
    assert third.acquire()


def test_where_workers_cannot_agree_nobody_counts_and_one_line_says_so(clock, caplog):
    class Broken(MemoryStore):
        def acquire(self, key, owner, seconds):
            raise StoreError("no answer")

    (worker,) = workers(clock, Broken(clock), "a")
    for _ in range(9):
        assert not worker.acquire()
        clock.advance(INTERVAL)
    assert caplog.text.count("workers cannot agree on one that counts the queues") == 1


@pytest.fixture
def sampler(series, clock):
    depths = [
        QueueDepth("a", 3, 2, 1, 9.5, 4),
        QueueDepth("b", error=UnavailableError("no answer")),
    ]
    sampler = Sampler(lambda: depths, Leadership(None, str, "", INTERVAL, clock), INTERVAL, clock)
    sampler.show(series)
    return sampler


def test_a_sample_is_told_until_it_is_old(series, sampler, clock, caplog):
    assert series.read_gauge(names.QUEUE_MESSAGES) == []
    sampler.sample()
    sampler.sample()
    assert caplog.text.count("metrics of queues lack figures, and go on without: no answer") == 1
    states = {("a", "visible"): 3, ("a", "in_flight"): 2, ("a", "delayed"): 1}
    assert dict(series.read_gauge(names.QUEUE_MESSAGES)) == states
    assert series.read_gauge(names.OLDEST_AGE) == [(("a",), 9.5)]
    assert series.read_gauge(names.DEAD_LETTERS) == [(("a",), 4)]
    clock.advance(3 * INTERVAL)
    assert series.read_gauge(names.DEAD_LETTERS) == []


@given(
    now=st.floats(0, 1e10),
    interval=st.sampled_from([10.0, 60.0, 3600.0]),
    phase=st.floats(0, 1, exclude_max=True),
)
def test_each_interval_of_the_clock_has_its_time(now, interval, phase):
    at = next_time(now, interval, phase)
    slack = 1e-5
    assert now - slack <= at <= now + interval + slack
    for just_then in (at, at + slack):
        assert next_time(just_then, interval, phase) == pytest.approx(at + interval, abs=slack)


def test_a_job_that_raises_is_done_again_and_the_end_is_called_when_it_stops(caplog):
    class Hurried(FakeClock):
        def monotonic(self):
            self.advance(5)
            return super().monotonic()

        def wall(self):  # somebody sets the clock back, all the time
            return 1e9 - super().wall()

    done, ended, calls = threading.Event(), threading.Event(), []

    def job():
        calls.append(1)
        if len(calls) == 2:
            done.set()
        raise ZeroDivisionError

    periodic = Periodic([(job, 10.0)], ended.set, Hurried())
    periodic.start()
    assert done.wait(10)
    periodic.stop()
    assert ended.wait(10)
    assert "unexpected error with metrics; continuing" in caplog.text


def test_a_job_is_first_done_within_a_minute_however_seldom_it_is_done(monkeypatch):
    done = threading.Event()
    clock = FakeClock()
    begun = clock.monotonic()

    class Waiting(threading.Event):
        def wait(self, timeout=None):
            clock.advance(timeout)
            return done.is_set()

    monkeypatch.setattr(worker_metrics, "threading", SimpleNamespace(Event=Waiting))
    times = []

    def job():
        times.append(clock.monotonic() - begun)
        if len(times) == 3:
            done.set()

    Periodic([(job, 300.0)], clock=clock)._run()
    assert times[0] <= 60
    assert [times[1] <= 360, times[2] - times[1]] == [True, pytest.approx(300)]


def test_a_worker_that_is_not_the_leader_asks_for_nothing():
    asked = []
    sampler = Sampler(lambda: asked.append(1) or [], SimpleNamespace(acquire=lambda: False), 60)
    sampler.sample()
    assert asked == []
