"""Every part of a consumer is checked; a bug in one check harms no other."""

import threading

import pytest
from support.clock import FakeClock
from support.lanes import work_off

from celery_sqs_visibility.delivery import pump as pump_module
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS, Supervisor


class Broken:
    """Something supervised that fails each time."""

    def __init__(self):
        self.checks = []

    def replace_stuck(self, now):
        self.checks.append(now)
        raise ZeroDivisionError


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make(clock, monkeypatch):
    """A supervisor whose checks the test makes, by `run`."""

    def make(*supervised):
        monkeypatch.setattr(pump_module, "start_thread", lambda *_: threading.current_thread())
        made = Supervisor(lambda: supervised, Pump(clock))
        made.start()
        return made

    return make


def run(supervisor, clock, *steps):
    """Have it check so many times, with those seconds from one check to the next."""
    for step in steps:
        clock.advance(step)
        work_off(supervisor.lane)


def test_a_bug_does_not_keep_the_supervisor_from_the_others(caplog, clock, make):
    supervised = [Broken(), Broken()]
    make(*supervised).check(5.0)
    assert [each.checks for each in supervised] == [[5.0], [5.0]]
    assert caplog.messages == ["unexpected error while replacing stuck threads; continuing"] * 2


def test_after_the_process_was_stopped_answers_have_time_to_come(clock, make):
    supervised = Broken()
    supervisor = make(supervised)
    began = clock.monotonic()
    run(supervisor, clock, CHECK_INTERVAL_SECONDS, 60, CHECK_INTERVAL_SECONDS)
    assert supervised.checks == [began + CHECK_INTERVAL_SECONDS, clock.monotonic()]


def test_it_knows_whether_the_process_was_stopped_between_two_instants(clock, make):
    supervisor = make()
    began = clock.monotonic()
    run(supervisor, clock, CHECK_INTERVAL_SECONDS)
    assert supervisor.stopped_at(began, began + 1) == began + 1
    run(supervisor, clock, CHECK_INTERVAL_SECONDS, 60, CHECK_INTERVAL_SECONDS)
    seen, now = began + 2 * CHECK_INTERVAL_SECONDS, clock.monotonic()
    assert supervisor.stopped_at(began, now) == seen
    assert supervisor.stopped_at(seen + 60, now) == seen
    assert supervisor.stopped_at(seen + 60.1, now) == now


def test_it_knows_so_before_its_thread_goes_on(clock, make):
    supervisor = make()
    seen = clock.monotonic()
    assert supervisor.stopped_at(seen, seen + CHECK_INTERVAL_SECONDS) == seen + CHECK_INTERVAL_SECONDS
    assert supervisor.stopped_at(seen, seen + 60) == seen
    assert supervisor.stopped_at(seen + 10, seen + 60) == seen + 60  # it hangs
    supervisor.running = False
    assert supervisor.stopped_at(seen, seen + 60) == seen + 60


def test_where_there_is_no_thread_the_start_fails_and_can_be_tried_again(clock, monkeypatch):
    supervisor = Supervisor(list, Pump(clock))
    with monkeypatch.context() as without:
        without.setattr(pump_module, "start_thread", lambda *_: None)
        with pytest.raises(RuntimeError, match="cannot start a thread that looks after the others"):
            supervisor.start()
    supervisor.start()
    supervisor.running = False
    supervisor.lane.stop()


def test_it_is_late_once_a_check_is_due_that_does_not_come(clock, make):
    supervisor = Supervisor(list, Pump(clock))
    assert supervisor.late(clock.monotonic() + 60) == 0  # it was not started
    supervisor = make()
    assert supervisor.late(clock.monotonic() + CHECK_INTERVAL_SECONDS) == 0
    assert supervisor.late(clock.monotonic() + CHECK_INTERVAL_SECONDS + 60) == 60
    supervisor.running = False
    assert supervisor.late(clock.monotonic() + 60) == 0


def test_it_checks_twice_a_second_and_no_more_after_its_stop(clock, make):
    supervised = Broken()
    supervisor = make(supervised)
    supervisor.start()
    run(supervisor, clock, *[CHECK_INTERVAL_SECONDS / 2] * 8)
    assert len(supervised.checks) == 4
    supervisor.running = False
    run(supervisor, clock, 60)
    assert len(supervised.checks) == 4
