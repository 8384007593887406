"""What a task's own code sees of its lease: on SQS and off it, in time and too late."""

import math
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Reject
from support.clock import FakeClock

from celery_sqs_visibility import InactivityError, VisibilityLostError, VisibilityTask, visibility
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.run_limits import NEAR_HORIZON_SECONDS
from celery_sqs_visibility.visibility import EXTEND_TIMEOUT_SECONDS, Visibility

LEFT = 30.0
HORIZON = 50_000.0


class ImpatientClock(FakeClock):
    """Moves by some seconds whenever somebody looks."""

    step = 0.0

    def monotonic(self):
        self.advance(self.step)
        return super().monotonic()


@pytest.fixture
def clock(monkeypatch):
    clock = ImpatientClock()
    monkeypatch.setattr(visibility, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def table(monkeypatch, leases):
    monkeypatch.setattr(lease_table, "lease_table", lambda: leases)
    return leases


@pytest.fixture
def take(table, clock):
    """`take(lost=True, ...)`: a lease with half a minute left, and what a task sees of it.

    `answer` says what an extension is granted, unless nobody answers it; `lost`, that it is lost then.
    """

    def take(answer=lambda until: until, *, lost=False):
        def extend(until):
            lease.lost = lost
            if answer:
                lease.deadline = answer(until)
                lease.answer(until)

        lease = table.take(clock.monotonic() + LEFT, extend, HORIZON)
        return lease, Visibility(Context(visibility_lease=lease.key))

    return take


def seen_by(lease):
    """What a run that has to show life sees, whose result nobody wants."""
    request = Context(visibility_lease=lease.key, ignore_result=True)
    return Visibility(request, SimpleNamespace(inactivity_timeout=30, ignore_result=True))


class TestElsewhere:
    """Off SQS, called directly or eagerly: nothing lapses."""

    @pytest.fixture
    def task(self):
        with Celery("test", set_as_current=False, broker="memory://", backend="cache+memory://") as app:

            @app.task(base=VisibilityTask, bind=True, shared=False)
            def task(self, *, release=False):
                if release:
                    self.visibility.release()
                seen = self.visibility
                seen.alive()
                return seen.lost, seen.remaining(), seen.extend(60), seen.until_horizon(), seen.near_horizon

            yield task

    def test_nothing_lapses_and_a_release_is_a_reject(self, task):
        assert task() == task.apply().get() == (False, math.inf, math.inf, math.inf, False)
        with pytest.raises(Reject) as raised:
            task(release=True)
        assert raised.value.requeue

    def test_nothing_is_stopping_but_the_worker_that_consumes_from_sqs_too(self, table, monkeypatch):
        table.stop()
        assert Visibility(Context()).stopping
        monkeypatch.setattr(lease_table, "lease_table", lambda: None)
        assert not Visibility(Context()).stopping


def test_what_has_no_lease_though_it_is_of_sqs_cannot_be_extended_and_says_so(table):
    seen = Visibility(Context(sqs={"queue": "q"}))
    assert (seen.lost, seen.remaining()) == (False, math.inf)
    with pytest.raises(RuntimeError, match="its worker gave it no lease"):
        seen.extend(60)


def test_a_lease_is_seen_until_it_lapses_although_nobody_has_said_so(take, clock):
    _, seen = take()
    assert (seen.lost, seen.remaining()) == (False, LEFT)
    clock.advance(LEFT)
    assert (seen.lost, seen.remaining()) == (True, 0)


def test_what_was_told_lost_is_lost_before_its_time_and_too_late_to_extend(take):
    lease, seen = take()
    lease.lost = True
    assert (seen.lost, seen.remaining()) == (True, 0)
    with pytest.raises(VisibilityLostError):
        seen.extend(600)
    assert lease.requested_deadline == 0


def test_a_lease_that_is_over_is_lost_whoever_has_its_row(take, table, clock):
    lease, seen = take()
    lease.end()
    table.take(clock.monotonic() + 600, lambda _until: None)
    assert (seen.lost, seen.remaining()) == (True, 0)


def test_the_shutdown_is_seen(take, table):
    _, seen = take()
    assert not seen.stopping
    table.stop()
    assert seen.stopping


@pytest.mark.parametrize(
    ("left", "near"), [(NEAR_HORIZON_SECONDS + 1, False), (NEAR_HORIZON_SECONDS, True), (0, True)]
)
def test_the_end_of_the_12_hours_is_seen(take, clock, left, near):
    _, seen = take()
    clock.advance(HORIZON - HORIZON_MARGIN_SECONDS - left - clock.monotonic())
    assert (seen.until_horizon(), seen.near_horizon) == (left, near)
    unleased = Visibility(Context(sqs={"horizon": HORIZON}))
    assert (unleased.until_horizon(), unleased.near_horizon) == (left, near)


def test_the_12_hours_of_a_message_that_came_back_are_those_of_its_newest_receive(take, clock):
    lease, _ = take()
    seen = Visibility(Context(visibility_lease=lease.key, sqs={"horizon": HORIZON - 5000}))
    left = HORIZON - HORIZON_MARGIN_SECONDS - clock.monotonic()
    assert seen.until_horizon() == left
    lease.end()  # its row may be another's
    assert seen.until_horizon() == left - 5000


def test_life_is_shown_where_it_is_asked_for(take, clock):
    lease, seen = take()
    seen.alive()
    assert lease.last_sign == UNWATCHED
    lease.last_sign = clock.monotonic()
    clock.advance(5)
    assert list(seen_by(lease).track("ab")) == ["a", "b"]
    assert lease.last_sign == clock.monotonic()


def test_a_run_that_was_silent_for_too_long_hears_of_it_unless_its_lease_is_over(take):
    lease, _ = take()
    lease.last_sign = INACTIVE
    with pytest.raises(InactivityError, match="no sign of life for 30 s"):
        seen_by(lease).alive()
    lease.end()
    seen_by(lease).alive()


@pytest.mark.parametrize(
    ("seconds", "answer", "left"),
    [
        (600, lambda until: until, 600),
        (600, lambda until: until - 500, 100),
        (LEFT - 1, lambda _until: pytest.fail("nobody needs that"), LEFT),
    ],
    ids=["granted", "the horizon is nearer", "less than what is left is not asked for"],
)
def test_an_extension_tells_what_is_left(take, seconds, answer, left):
    _, seen = take(answer)
    assert seen.extend(seconds) == left


@pytest.mark.parametrize("seconds", [-1, VISIBILITY_HORIZON_SECONDS + 1, math.nan, math.inf])
@pytest.mark.parametrize("on_sqs", [True, False])
def test_bad_values_are_refused_on_sqs_and_elsewhere(take, on_sqs, seconds):
    seen = take()[1] if on_sqs else Visibility(Context())
    with pytest.raises(ValueError, match="expected 0 to 43200 seconds"):
        seen.extend(seconds)


@pytest.mark.parametrize("answer", [lambda until: until, None], ids=["and answered", "and nobody answers"])
def test_what_is_lost_while_it_waits_is_told_lost(take, answer):
    _, seen = take(answer, lost=True)
    with pytest.raises(VisibilityLostError):
        seen.extend(600)


def test_an_extension_that_sqs_does_not_confirm_times_out_and_stays_wanted(take, clock):
    lease, seen = take(None)
    clock.step = EXTEND_TIMEOUT_SECONDS / 5
    unconfirmed = "SQS has not confirmed within 10 s that the message is hidden for 600 s"
    with pytest.raises(TimeoutError, match=unconfirmed):
        seen.extend(600)
    assert lease.requested_deadline
