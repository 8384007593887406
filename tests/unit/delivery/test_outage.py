"""An outage is logged when it begins and when it is over, not at every attempt."""

import logging

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.delivery.outage import STEADY_SECONDS, Outage, Outages
from celery_sqs_visibility.errors import ThrottledError, UnavailableError

SLOW = ThrottledError("slow")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def outage(clock):
    return Outage(logging.getLogger("test"), "knit", "q", clock)


def test_each_kind_of_error_has_one_line_and_the_end_has_one(outage, caplog, clock):
    for error in (SLOW, SLOW, UnavailableError("gone"), SLOW):
        outage.failure(error)
        clock.advance(4)
    assert outage.error is SLOW
    for _ in range(2):
        outage.success(clock.monotonic())
    assert outage.error is None
    assert caplog.messages == [
        "cannot knit: slow; trying again (queue=q)",
        "cannot knit: gone; trying again (queue=q)",
        "can knit again after 16 s (queue=q failures=4)",
    ]
    assert {record.sqs["queue"] for record in caplog.records} == {"q"}


@pytest.mark.parametrize(
    ("times", "pause", "lines", "failures"),
    [(100, STEADY_SECONDS / 20, 3, 99), (2, STEADY_SECONDS + 1, 4, 1)],
)
def test_an_outage_that_comes_back_soon_goes_on_and_late_is_a_new_one(
    outage, caplog, clock, times, pause, lines, failures
):
    for _ in range(times):
        outage.failure(SLOW)
        outage.success(clock.monotonic())
        clock.advance(pause)
    assert len(caplog.messages) == lines
    clock.advance(STEADY_SECONDS)
    outage.success(clock.monotonic())
    assert caplog.messages[-1].endswith(f"(queue=q failures={failures})")


def test_a_request_made_before_the_outage_began_does_not_end_it(outage, caplog, clock):
    since = clock.monotonic()
    clock.advance(1)
    outage.failure(SLOW)
    clock.advance(1)
    outage.success(since)
    outage.failure(SLOW)
    assert len(caplog.messages) == 1
    outage.success(clock.monotonic())
    assert caplog.messages[-1] == "can knit again after 1 s (queue=q failures=2)"


def test_threads_that_fail_together_log_one_line_and_one_tells_of_the_end(outage, caplog, clock):
    """Each is interrupted by the other where it has read the time."""

    class Interrupting(FakeClock):
        def monotonic(self):
            if others:
                others.pop()()
            return clock.monotonic()

    outage._clock = Interrupting()
    others = [lambda: outage.failure(SLOW)]
    outage.failure(SLOW)
    assert caplog.messages == ["cannot knit: slow; trying again (queue=q)"]
    others = [lambda: outage.success(clock.monotonic())]
    outage.success(clock.monotonic())
    assert caplog.messages[1:] == ["can knit again after 0 s (queue=q failures=2)"]


def test_outages_are_told_apart_by_queue_and_action_and_end_where_a_part_worked(caplog, clock):
    outages = Outages(logging.getLogger("test"), clock)
    now = clock.monotonic()
    for action, queue in (("knit", "a"), ("purl", "a"), ("knit", "b")):
        outages.note(action, queue, None, now)
        assert outages.error(action, queue) is None
        outages.note(action, queue, SLOW, now)
        assert outages.error(action, queue) is SLOW
    outages.note("knit", "a", None, now, worked=False)
    outages.note("knit", "a", None, now)
    assert [outages.error("knit", "a"), outages.error("purl", "a")] == [None, SLOW]
    assert len(caplog.messages) == 4
