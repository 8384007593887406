"""Every thread of a consumer is checked; a bug in one check harms no other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.delivery import supervisor as supervisor_module
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS, Supervisor


class Broken:
    """Something supervised that fails each time."""

    def __init__(self):
        self.checks = []

    def replace_stuck(self, now):
        self.checks.append(now)
        raise ZeroDivisionError


def test_a_bug_does_not_keep_the_supervisor_from_the_others(caplog):
    supervised = [Broken(), Broken()]
    Supervisor(lambda: supervised, FakeClock()).check(5.0)
    assert [each.checks for each in supervised] == [[5.0], [5.0]]
    assert caplog.messages == ["unexpected error while replacing stuck threads; continuing"] * 2


def run(supervisor, clock, *steps):
    """Let the supervisor check so many times, with those seconds from one check to the next."""
    following = iter(steps)

    def wait(_timeout):
        step = next(following, None)
        clock.advance(step or 0)
        return step is None

    supervisor._run(SimpleNamespace(wait=wait))


def test_after_the_process_was_stopped_answers_have_time_to_come():
    clock = FakeClock()
    supervised = Broken()
    supervisor = Supervisor(lambda: [supervised], clock)
    began = clock.monotonic()
    run(supervisor, clock, CHECK_INTERVAL_SECONDS, 60, CHECK_INTERVAL_SECONDS)
    assert supervised.checks == [began + CHECK_INTERVAL_SECONDS, clock.monotonic()]


def test_it_knows_whether_the_process_was_stopped_between_two_instants():
    clock = FakeClock()
    supervisor = Supervisor(list, clock)
    began = clock.monotonic()
    run(supervisor, clock, CHECK_INTERVAL_SECONDS)
    assert supervisor.stopped_at(began, began + 1) == began + 1
    run(supervisor, clock, CHECK_INTERVAL_SECONDS, 60, CHECK_INTERVAL_SECONDS)
    seen, now = began + 2 * CHECK_INTERVAL_SECONDS, clock.monotonic()
    assert supervisor.stopped_at(began, now) == seen
    assert supervisor.stopped_at(seen + 60, now) == seen
    assert supervisor.stopped_at(seen + 60.1, now) == now


def test_it_knows_so_before_its_thread_goes_on(monkeypatch):
    clock = FakeClock()
    supervisor = Supervisor(list, clock)
    monkeypatch.setattr(supervisor_module, "start_thread", lambda *_: "a thread that is stopped, too")
    supervisor.start()
    seen = clock.monotonic()
    assert supervisor.stopped_at(seen, seen + CHECK_INTERVAL_SECONDS) == seen + CHECK_INTERVAL_SECONDS
    assert supervisor.stopped_at(seen, seen + 60) == seen
    assert supervisor.stopped_at(seen + 10, seen + 60) == seen + 60  # it hangs
    supervisor.stop()
    assert supervisor.stopped_at(seen, seen + 60) == seen + 60


def test_where_it_has_no_thread_the_start_fails_and_can_be_tried_again(monkeypatch):
    supervisor = Supervisor(list, FakeClock())
    with monkeypatch.context() as without:
        without.setattr(supervisor_module, "start_thread", lambda *_: None)
        with pytest.raises(RuntimeError, match="cannot start the thread that supervises"):
            supervisor.start()
    supervisor.start()
    supervisor.stop()


def test_it_is_late_once_a_check_is_due_that_does_not_come(monkeypatch):
    clock = FakeClock()
    supervisor = Supervisor(list, clock)
    monkeypatch.setattr(supervisor_module, "start_thread", lambda *_: "a thread that hangs")
    assert supervisor.late(clock.monotonic() + 60) == 0  # it was not started
    supervisor.start()
    assert supervisor.late(clock.monotonic() + CHECK_INTERVAL_SECONDS) == 0
    assert supervisor.late(clock.monotonic() + CHECK_INTERVAL_SECONDS + 60) == 60
    supervisor.stop()
    assert supervisor.late(clock.monotonic() + 60) == 0


def test_a_second_start_starts_no_second_thread(monkeypatch):
    started = []
    monkeypatch.setattr(supervisor_module, "start_thread", lambda *thread: started.append(thread) or thread)
    supervisor = Supervisor(list, FakeClock())
    supervisor.start()
    supervisor.start()
    assert len(started) == 1
