"""What a task's own code sees of its lease: on SQS and off it, in time and too late."""

from __future__ import annotations

import math
import os

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Reject
from support.clock import FakeClock

from celery_sqs_visibility import VisibilityLostError, VisibilityTask, visibility
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.visibility import EXTEND_TIMEOUT_SECONDS, Visibility

LEFT = 30.0


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
def table(monkeypatch):
    table = LeaseTable()
    monkeypatch.setattr(visibility, "lease_table", lambda: table)
    yield table
    for end in table._pipe:
        os.close(end)


@pytest.fixture
def lease(table, clock):
    """A lease whose every wish is granted."""

    def grant(until):
        lease.deadline = until
        lease.answer(until)

    lease = table.take(clock.monotonic() + LEFT, grant)
    return lease


@pytest.fixture
def seen(lease):
    return Visibility(Context(visibility_lease=lease.key))


class TestElsewhere:
    """Off SQS, called directly or eagerly: nothing lapses."""

    @pytest.fixture
    def task(self):
        with Celery("test", set_as_current=False, broker="memory://", backend="cache+memory://") as app:

            @app.task(base=VisibilityTask, bind=True, shared=False)
            def task(self, action):
                seen = self.visibility
                return (
                    seen.release() if action == "release" else (seen.lost, seen.remaining(), seen.extend(60))
                )

            yield task

    def test_called_directly(self, task):
        assert task("look") == (False, math.inf, math.inf)

    def test_eagerly(self, task):
        assert task.apply(("look",)).get() == (False, math.inf, math.inf)

    def test_a_release_is_a_reject(self, task):
        with pytest.raises(Reject) as raised:
            task("release")
        assert raised.value.requeue

    def test_nothing_is_stopping(self, monkeypatch):
        monkeypatch.setattr(visibility, "lease_table", lambda: None)
        assert not Visibility(Context()).stopping

    def test_a_task_of_another_broker_in_this_worker_sees_the_shutdown_all_the_same(self, table):
        table.stop()
        assert Visibility(Context()).stopping


def test_what_has_no_lease_though_it_is_of_sqs_cannot_be_extended_and_says_so(table):
    seen = Visibility(Context(sqs={"queue": "q"}))
    assert (seen.lost, seen.remaining()) == (False, math.inf)
    with pytest.raises(RuntimeError, match="its worker gave it no lease"):
        seen.extend(60)


def test_a_lease_is_seen(seen):
    assert not seen.lost
    assert seen.remaining() == LEFT


def test_what_lapsed_is_lost_although_nobody_has_said_so(seen, clock):
    clock.advance(LEFT)
    assert seen.lost
    assert seen.remaining() == 0


def test_what_was_told_lost_is_lost_before_its_time(seen, lease):
    lease.lost = True
    assert seen.lost
    assert seen.remaining() == 0


def test_a_lease_that_is_over_is_lost_whoever_has_its_row(seen, lease, table, clock):
    lease.end()
    table.take(clock.monotonic() + 600, lambda _until: None)
    assert seen.lost
    assert seen.remaining() == 0


def test_the_shutdown_is_seen(seen, table):
    assert not seen.stopping
    table.stop()
    assert seen.stopping


def test_an_extension_tells_what_is_left(seen):
    assert seen.extend(600) == 600


def test_less_than_what_is_left_is_not_asked_for(table, clock):
    lease = table.take(clock.monotonic() + LEFT, lambda _until: pytest.fail("nobody needs that"))
    assert Visibility(Context(visibility_lease=lease.key)).extend(LEFT - 1) == LEFT


def test_where_the_horizon_is_nearer_it_tells_the_less(table, clock):
    def grant_less(until):
        lease.deadline = until - 500
        lease.answer(until)

    lease = table.take(clock.monotonic() + LEFT, grant_less)
    assert Visibility(Context(visibility_lease=lease.key)).extend(600) == 100


@pytest.mark.parametrize("seconds", [-1, VISIBILITY_HORIZON_SECONDS + 1, math.nan, math.inf])
@pytest.mark.parametrize("where", ["seen", "elsewhere"])
def test_bad_values_are_refused_on_sqs_and_elsewhere(request, table, where, seconds):
    asked = request.getfixturevalue("seen") if where == "seen" else Visibility(Context())
    with pytest.raises(ValueError, match="expected 0 to 43200 seconds"):
        asked.extend(seconds)


def test_it_is_too_late_for_what_is_lost(seen, lease):
    lease.lost = True
    with pytest.raises(VisibilityLostError):
        seen.extend(600)
    assert lease.requested_deadline == 0


def test_what_is_lost_while_it_waits_is_told_lost(table, clock):
    def lose(until):
        lease.lost = True
        lease.answer(until)

    lease = table.take(clock.monotonic() + LEFT, lose)
    with pytest.raises(VisibilityLostError):
        Visibility(Context(visibility_lease=lease.key)).extend(600)


def test_what_was_lost_a_moment_before_it_asked_is_told_so_although_nobody_answers(table, clock):
    def lose(_until):
        lease.lost = True

    lease = table.take(clock.monotonic() + LEFT, lose)
    with pytest.raises(VisibilityLostError):
        Visibility(Context(visibility_lease=lease.key)).extend(600)


def test_an_extension_that_sqs_does_not_confirm_times_out_and_stays_wanted(table, clock):
    lease = table.take(clock.monotonic() + LEFT, lambda _until: None)
    clock.step = EXTEND_TIMEOUT_SECONDS / 5
    with pytest.raises(
        TimeoutError, match="SQS has not confirmed within 10 s that the message is hidden for 600 s"
    ):
        Visibility(Context(visibility_lease=lease.key)).extend(600)
    assert lease.requested_deadline
