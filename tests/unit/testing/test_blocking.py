"""A second run that waits for what the first has, on the one thread of both: it dies, and nothing hangs."""

import sqlite3
import threading

import pytest

from celery_sqs_visibility.testing import SimulationFailedError, simulate
from celery_sqs_visibility.testing.blocking import ended_if_it_waits
from celery_sqs_visibility.testing.schedule import Fault

OVERLAPPING = [Fault.SECOND_DELIVERY, Fault.LAPSE]
DIES = "dies, after it has waited for 0.2 s, as for a lock of another run"


def simulated(task, seeds, make):
    """A test of the task; the simulations."""
    seen = []

    @simulate(seeds=seeds, faults=OVERLAPPING)
    def test(sim):
        seen.append(sim)
        sim.sent = make(sim)
        sim.run(task.s(len(seen) - 1))
        sim.once()

    return test, seen


def test_a_correct_task_with_a_lock_passes(app):
    lock = threading.Lock()

    @app.task(name="pay", max_retries=5, error_visibility_timeout=10)
    def pay(number):
        with lock:
            if "paid" not in seen[number].sent:
                seen[number].effect("paid", lambda: seen[number].sent.add("paid"))

    test, seen = simulated(pay, 8, lambda _sim: set())
    test()
    assert any(DIES in sim.story() for sim in seen)


def test_a_correct_task_that_locks_its_database_passes(app):
    @app.task(name="pay", max_retries=9, autoretry_for=[sqlite3.OperationalError])
    def pay(number):
        database = sqlite3.connect(seen[number].directory / "paid", timeout=0.1, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute("CREATE TABLE IF NOT EXISTS paid (one)")
            if not database.execute("SELECT * FROM paid").fetchall():
                seen[number].effect("paid", lambda: database.execute("INSERT INTO paid VALUES (1)"))
            database.execute("COMMIT")
        finally:
            database.close()

    test, seen = simulated(pay, 8, lambda _sim: None)
    test()


def test_one_that_does_without_the_lock_is_found_out(app):
    @app.task(name="pay", max_retries=5, error_visibility_timeout=10)
    def pay(number):
        seen[number].effect("paid")

    test, seen = simulated(pay, 8, lambda _sim: None)
    with pytest.raises(SimulationFailedError, match="took place 2 times"):
        test()


def test_a_run_that_works_does_not_wait():
    ended = []
    with ended_if_it_waits(lambda: ended.append(1)):
        sum(range(10_000_000))
    assert ended == []


def test_in_another_thread_nothing_is_looked_at():
    """Only a main thread hears of signals."""
    passed = []

    def other():
        with ended_if_it_waits(pytest.fail):
            passed.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert passed == [1]
