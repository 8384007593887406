"""A pump without threads: its caller makes the requests, and a late answer decides nothing."""

import math
import threading

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.inline import InlinePump
from celery_sqs_visibility.errors import UnavailableError


class Letters:
    """Batches of one letter, each due at an instant; "b" follows where "a" was sent."""

    def __init__(self, pump):
        self.lane = pump.lane("sends letters", 1, self)
        self.waiting, self.concluded = [], []

    def due(self, _now):
        return min((at for at, _ in self.waiting), default=None)

    def ready(self):
        return len(self.waiting)

    def take(self, now):
        due = [one for one in self.waiting if one[0] <= now]
        return self.waiting.pop(self.waiting.index(due[0]))[1] if due else None

    def send(self, _batch, _since):
        return BatchResult({})

    def conclude(self, batch, since, failed):
        self.concluded.append((batch, [str(error) for error in failed.values()]))
        if batch == "a":
            self.waiting.append((since, "b"))


@pytest.fixture
def clock():
    return FakeClock()


def test_what_is_due_is_sent_and_what_follows_from_it(clock):
    pump = InlinePump(clock)
    letters, others = Letters(pump), Letters(pump)
    assert pump.next_due() == math.inf
    letters.waiting += [(clock.monotonic(), "a"), (clock.monotonic() + 5, "c")]
    others.waiting.append((clock.monotonic(), "d"))
    pump.work_off()
    assert (letters.concluded, others.concluded) == ([("a", []), ("b", [])], [("d", [])])
    assert pump.next_due() == clock.monotonic() + 5


def test_a_lane_that_is_started_starts_no_thread(clock):
    pump, before = InlinePump(clock), threading.active_count()
    letters = Letters(pump)
    letters.lane.start()
    letters.waiting.append((clock.monotonic(), "c"))
    with letters.lane.lock:
        letters.lane.wake()
        assert letters.lane.wait_until(lambda: bool(letters.concluded), 1)
        assert not letters.lane.wait_until(lambda: False, 1)
    assert threading.active_count() == before


def test_a_request_that_takes_too_long_has_failed(clock):
    def in_time(_request):
        raise UnavailableError("too slow")

    pump = InlinePump(clock, in_time)
    letters = Letters(pump)
    letters.waiting.append((clock.monotonic(), "c"))
    pump.work_off()
    assert letters.concluded == [("c", ["too slow"])]
