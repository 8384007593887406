"""What a held message is, and what a signal to its worker would do to it now."""

from types import SimpleNamespace

import pytest
from support import factories

from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.delivery import State, Wait
from celery_sqs_visibility.worker.held_messages import Moment, begun_at, described

NOW = 1030.0  # the message was received at 1000
WALL = 5_000.0
RUNS_HAVE = 25.0


@pytest.fixture
def sqs():
    return factories.FakeSQS(factories.FakeClock())


def delivery(sqs, state=State.RUNNING, *, began=1010.0, receives_left=2, wait=None, early=False):
    letters = factories.queue(sqs, "letters")
    queue = factories.queue(sqs, "q", letters=letters, most=3)
    redrive = RedriveBook()
    redrive.get(queue, NOW)
    facts = {
        "task": "t",
        "task_id": "id",
        "receive_count": 3 - receives_left,
        "received": 4_970.0,
        "attempt": 1,
    }
    one = factories.delivery(queue, SimpleNamespace(redrive=redrive), **facts)
    one.state, one.wait, one.acknowledged_early = state, wait, early
    one.began = began if state in {State.RUNNING, State.SETTLED} else None
    return one


def moment(usual=None):
    return Moment(NOW, WALL, RUNS_HAVE, usual)


def test_times_are_in_seconds_since_the_epoch(sqs):
    told = described(delivery(sqs), moment())
    assert (told["received"], told["began"]) == (4_970.0, 4_980.0)
    assert told["lease_ends"] == WALL + factories.TIMEOUT - 30
    assert told["horizon"] == WALL + 12 * 3600 - 30
    assert (told["state"], told["receives_left"], told["waits_for"]) == ("running", 2, None)


@pytest.mark.parametrize(
    ("usual", "time_limit", "ends"),
    [
        (None, None, False),
        (45.0, None, True),  # it has run for 20 s: 25 s are left
        (45.1, None, False),
        (20.0, None, False),  # it takes longer than usual: nobody knows how long
        (None, 45, True),  # its limit ends it
        (None, 46, False),
    ],
)
def test_a_run_ends_in_time_if_its_limit_or_the_usual_time_say_so(sqs, usual, time_limit, ends):
    told = described(delivery(sqs), moment(usual), time_limit)
    assert told["at_sigterm"] == ("ends in time" if ends else "runs again")
    assert told["at_sigkill"] == "runs again"


@pytest.mark.parametrize(
    ("state", "receives_left", "sigterm", "sigkill"),
    [
        (State.HELD, 1, "given back", "runs again"),
        (State.HELD, 0, "dead letter", "dead letter"),
        (State.DISPATCHED, 1, "runs again", "runs again"),
        (State.RUNNING, 0, "dead letter", "dead letter"),
        (State.COPYING, 1, "sent on", "runs again"),
    ],
)
def test_what_a_signal_does_depends_on_the_state_and_on_the_receives_left(
    sqs, state, receives_left, sigterm, sigkill
):
    told = described(delivery(sqs, state, receives_left=receives_left), moment())
    assert (told["at_sigterm"], told["at_sigkill"]) == (sigterm, sigkill)


def test_a_run_whose_message_is_deleted_is_lost_unless_it_ends_in_time(sqs):
    run = delivery(sqs, State.SETTLED, early=True)
    told = described(run, moment())
    assert (told["state"], told["lease_ends"], told["horizon"]) == ("running", None, None)
    assert (told["at_sigterm"], told["at_sigkill"]) == ("lost", "lost")
    assert described(run, moment(usual=30))["at_sigterm"] == "ends in time"


@pytest.mark.parametrize(
    ("wait", "told"), [(Wait.PAYLOAD, "payload"), (Wait.START, "eta or rate"), (Wait.FAR_START, "rate")]
)
def test_what_it_waits_for(sqs, wait, told):
    assert described(delivery(sqs, State.HELD, wait=wait), moment())["waits_for"] == told


@pytest.mark.parametrize(
    ("wait", "told"),
    [(None, None), (Wait.PAYLOAD, "payload"), (Wait.START, "resume"), (Wait.FAR_START, "resume")],
)
def test_a_message_whose_task_is_paused_waits_for_its_resume(sqs, wait, told):
    at = Moment(NOW, WALL, RUNS_HAVE, paused={"t"})
    assert described(delivery(sqs, State.HELD, wait=wait), at)["waits_for"] == told


def test_what_was_received_first_is_held_longest(sqs):
    assert begun_at(delivery(sqs), moment()) == 4_980.0
    assert begun_at(delivery(sqs, State.HELD), moment()) == 4_970.0
