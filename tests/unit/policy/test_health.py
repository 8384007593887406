"""A worker lives while each part does what is due, and is ready while nothing keeps messages from it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.health import (
    HANDOVER_LATE_SECONDS,
    LATE_SECONDS,
    POLL_LATE_SECONDS,
    BrakeFacts,
    DutyFacts,
    PollingFacts,
    WaitingFacts,
    WorkerFacts,
    WorkerPhase,
    liveness,
    readiness,
)

WELL = WorkerFacts(
    WorkerPhase.RUNNING, processes=2, polls=(PollingFacts("orders"),), duties=(DutyFacts("extends messages"),)
)
STUCK = {
    "Celery's event loop has been blocked for 31 s": {"loop": LATE_SECONDS + 1},
    "no process of the pool is alive": {"processes": 0},
    "tasks have been waiting for the pool for 61 s, and it runs none": {
        "handover": HANDOVER_LATE_SECONDS + 1
    },
    "the thread that polls queue 'orders' is 121 s late": {
        "polls": (PollingFacts("orders", POLL_LATE_SECONDS + 1),)
    },
    "the thread that settles messages is 31 s late": {
        "duties": (DutyFacts("settles messages", LATE_SECONDS + 1),)
    },
}
NOT_READY = {
    "cannot receive from queue 'orders': throttled": PollingFacts("orders", error="throttled"),
    "the first poll of queue 'orders' has not come back": PollingFacts("orders", accepted=False),
}

seconds = st.floats(0, 10_000)
facts = st.builds(
    WorkerFacts,
    st.sampled_from(WorkerPhase),
    seconds,
    st.none() | st.integers(0, 9),
    st.lists(st.builds(PollingFacts, st.text(), seconds, st.booleans(), st.text(), st.booleans())).map(tuple),
    st.lists(st.builds(DutyFacts, st.text(), seconds)).map(tuple),
)


def test_a_brake_is_a_note_and_no_trouble():
    brakes = (BrakeFacts("bank", "on", 12.4, 3, 20), BrakeFacts("mail", "easing", 12.0, 3, 1))
    verdict = readiness(dataclasses.replace(WELL, brakes=brakes))
    note = "brake 'bank' has been on for 12 s, and 20 messages wait"
    assert (verdict.ok, verdict.reason) == (True, f"ready: consumes 1 queue; {note}")
    one = dataclasses.replace(WELL, brakes=(BrakeFacts("bank", "on", 1.0, 0, 1),))
    assert readiness(one).reason.endswith("on for 1 s, and 1 message waits")


@pytest.mark.parametrize(("wanted", "ok"), [(None, False), (2, False), (0, True)])
def test_a_pool_that_is_to_have_no_process_is_well_without(wanted, ok):
    assert liveness(dataclasses.replace(WELL, processes=0, wanted_processes=wanted)).ok is ok


def test_a_worker_that_is_well_says_how_many_queues_it_consumes():
    assert liveness(WELL).reason == "live: consumes 1 queue"
    assert readiness(dataclasses.replace(WELL, polls=())).reason == "ready: consumes 0 queues"


@pytest.mark.parametrize("what", NOT_READY)
def test_a_paused_queue_is_said_and_keeps_nobody_waiting(what):
    paused = dataclasses.replace(NOT_READY[what], paused=True)
    well = dataclasses.replace(WELL, polls=(paused, PollingFacts("mail")))
    assert readiness(well).reason == "ready: consumes 2 queues, of which 'orders' is paused"


@pytest.mark.parametrize("what", STUCK)
def test_whatever_is_stuck_is_named_and_takes_readiness_too(what):
    stuck = dataclasses.replace(WELL, **STUCK[what])
    assert (liveness(stuck).ok, liveness(stuck).reason) == (False, f"stuck: {what}")
    assert readiness(stuck) == liveness(stuck)


@pytest.mark.parametrize("what", NOT_READY)
def test_what_a_restart_does_not_mend_takes_readiness_alone(what):
    waiting = dataclasses.replace(WELL, polls=(NOT_READY[what],))
    assert liveness(waiting).ok
    assert readiness(waiting).reason == f"not ready: {what}"


@pytest.mark.parametrize(
    ("earlier", "later", "still"),
    [
        ((5, {"a", "b"}), (5, {"b", "c"}), True),
        ((5, {"a"}), (6, {"a"}), False),  # a run has begun meanwhile
        ((5, {"a"}), (5, {"b"}), False),  # what waited was revoked, for one
    ],
)
def test_tasks_wait_as_long_as_none_begins_and_one_is_the_same(earlier, later, still):
    facts = [WaitingFacts(begun, frozenset(tasks)) for begun, tasks in (earlier, later)]
    assert facts[1].still(facts[0]) is still


@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.STOPPING])
def test_at_its_start_and_its_end_a_worker_lives_and_is_not_ready(phase):
    facts = WorkerFacts(phase)
    assert liveness(facts).reason == f"live: {phase.value}"
    assert not readiness(facts).ok


@given(facts)
def test_what_is_ready_lives_and_what_does_not_live_says_why(facts):
    live, ready = liveness(facts), readiness(facts)
    assert live.ok or not ready.ok
    assert live.reason
    assert ready.reason


@given(facts, seconds)
def test_no_part_that_comes_later_makes_a_worker_healthier(facts, more):
    later = dataclasses.replace(
        facts,
        loop=facts.loop + more,
        polls=tuple(dataclasses.replace(each, late=each.late + more) for each in facts.polls),
        duties=tuple(dataclasses.replace(each, late=each.late + more) for each in facts.duties),
    )
    assert liveness(facts).ok >= liveness(later).ok
    assert readiness(facts).ok >= readiness(later).ok
