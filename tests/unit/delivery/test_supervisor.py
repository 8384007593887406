"""One look after the other at all that have threads, and none that does harm."""

from __future__ import annotations

from support.clock import FakeClock

from celery_sqs_visibility.delivery.supervisor import INTERVAL, Supervisor


class Wards:
    def __init__(self, clock):
        self.clock = clock
        self.looks = []

    def replace_stuck(self, now):
        self.looks.append(now)
        raise ZeroDivisionError


def test_a_stumbling_ward_does_not_keep_the_watchdog_from_the_others(caplog):
    clock = FakeClock()
    supervised = [Wards(clock), Wards(clock)]
    Supervisor(lambda: supervised, clock).look(5.0)
    assert [ward.looks for ward in supervised] == [[5.0], [5.0]]
    assert caplog.records[0].getMessage() == "supervisor stumbled and goes on"


def test_after_the_process_was_stopped_answers_have_time_to_come():
    clock = FakeClock()
    ward = Wards(clock)
    supervisor = Supervisor(lambda: [ward], clock)

    class Stopped:
        """The event that the thread waits for, between two looks."""

        def __init__(self):
            self.steps = iter([INTERVAL, 60, INTERVAL])

        def wait(self, _timeout):
            step = next(self.steps, None)
            clock.advance(step or 0)
            return step is None

    began = clock.monotonic()
    supervisor._run(Stopped())
    assert ward.looks == [began + INTERVAL, began + INTERVAL + 60 + INTERVAL]
