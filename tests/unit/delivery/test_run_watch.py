"""What runs is warned before its 12 hours end, and ended when it shows no life."""

import pytest
from support import factories
from support.factories import TIMEOUT, every_queue

from celery_sqs_visibility.core.delivery import Inactivity
from celery_sqs_visibility.core.held import Held
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED
from celery_sqs_visibility.delivery.watches import RunWatch
from celery_sqs_visibility.events import HorizonNear, subscribe
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.run_limits import NEAR_HORIZON_SECONDS

NOW = 1000.0
LIMIT = 10.0
QUEUE = factories.sqs_queue()
NEAR = NOW + VISIBILITY_HORIZON_SECONDS - HORIZON_MARGIN_SECONDS - NEAR_HORIZON_SECONDS


@pytest.fixture
def core(leases):
    core = Held(every_queue(TIMEOUT, 40.0), TIMEOUT)
    core.leases = leases
    return core


@pytest.fixture
def watch(core):
    return RunWatch(lambda: core.of(None), core)


@pytest.fixture
def warnings():
    seen = []
    forget = subscribe(seen.append, HorizonNear)
    yield seen
    forget()


@pytest.fixture
def receive(core):
    """`receive("h1")`: a delivery that is held, and runs."""

    def receive(handle, *, runs=True, now=NOW, message_id=None):
        one = factories.delivery(QUEUE, handle=handle, now=now, message_id=message_id or handle)
        core.receive([one], now)
        if runs:
            core.begin(one, now)
        return one

    return receive


@pytest.fixture
def silent(receive):
    """A run that has to show life, and has at its beginning; what was ended."""
    one, ended = receive("h1"), []
    one.inactivity = Inactivity(LIMIT, lambda: ended.append(one))
    one.lease.last_sign = NOW
    return one, ended


def check(watch, *, until, since=NOW):
    """Twice a second, as the supervisor does."""
    for half_seconds in range(int(2 * (until - since)) + 1):
        watch.replace_stuck(since + half_seconds / 2)


def test_a_run_is_warned_of_once_15_minutes_before_its_12_hours_end(watch, receive, warnings):
    one = receive("h1")
    receive("waits", runs=False)
    watch.replace_stuck(NEAR - 0.5)
    assert warnings == []
    check(watch, since=NEAR, until=NEAR + 5)
    assert warnings == [HorizonNear(one.facts, NEAR_HORIZON_SECONDS)]


def test_a_message_that_comes_back_to_its_run_has_12_hours_anew(watch, receive, warnings):
    one = receive("h1")
    watch.replace_stuck(NEAR)
    again = receive("h2", runs=False, now=NEAR, message_id="h1")
    assert one.lease.horizon == one.horizon == again.horizon
    watch.replace_stuck(NEAR + 60)
    assert len(warnings) == 1
    watch.replace_stuck(again.horizon)
    assert len(warnings) == 2


def test_a_run_is_ended_once_within_half_a_second_of_its_limit_and_hears_of_it(watch, silent):
    one, ended = silent
    check(watch, until=NOW + LIMIT - 0.5)
    assert ended == []
    check(watch, since=NOW + LIMIT, until=NOW + LIMIT + 5)
    assert ended == [one]
    assert one.lease.last_sign == INACTIVE


@pytest.mark.parametrize("sign", [NOW + LIMIT, UNWATCHED], ids=["showed life", "its code is over"])
def test_a_run_is_not_ended_that(watch, silent, sign):
    one, ended = silent
    one.lease.last_sign = sign
    check(watch, until=NOW + LIMIT + 5)
    assert ended == []


def test_what_was_settled_meanwhile_is_not_ended(silent, core, leases):
    one, ended = silent
    watch = RunWatch(lambda: [one], core)
    core.settle(one, Delete(), NOW)
    other = leases.take(NOW, pytest.fail)  # which has the row now
    other.last_sign = NOW
    check(watch, until=NOW + LIMIT + 1)
    assert (ended, other.last_sign) == ([], NOW)


def test_while_the_machine_slept_nobody_could_show_life(watch, silent):
    one, ended = silent
    watch.replace_stuck(NOW)
    check(watch, since=NOW + 3600, until=NOW + 3600 + LIMIT - 0.5)
    assert ended == []
    watch.replace_stuck(NOW + 3600 + LIMIT)
    assert ended == [one]


def test_a_run_that_came_back_is_watched_on(watch, silent, receive):
    one, ended = silent
    receive("h2", runs=False, message_id="h1")
    check(watch, until=NOW + LIMIT)
    assert ended == [one]


def test_an_error_with_one_run_does_not_concern_the_others(watch, silent, receive, caplog):
    _, ended = silent
    other = receive("h2")
    other.inactivity = Inactivity(LIMIT, lambda: ended.append(other))
    other.lease.last_sign = NOW
    silent[0].inactivity = Inactivity(LIMIT, lambda: 1 // 0)
    check(watch, until=NOW + LIMIT)
    assert ended == [other]
    assert "an inactive run could not be ended, and goes on" in caplog.text
