"""Whatever SQS answers where nobody has recorded it, nothing is lost, and no other worker's run is disturbed.

docs/fidelity.md has the open answers; the fake has a switch for each.
"""

import itertools

import pytest
from support import factories
from support.factories import CHANGES, EVERYTHING, TIMEOUT
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.events import Deleted, FinishedBefore, Lost

SWITCHES = [
    {"late_change": late, "late_fifo_change": late, "old_handle_deletes": deletes}
    for late, deletes in itertools.product(LateChange, [False, True])
]


@pytest.fixture(
    params=SWITCHES, ids=lambda switches: f"{switches['late_change'].name}-{switches['old_handle_deletes']}"
)
def open_world(request, make):
    """A consumer without a heartbeat: what it holds lapses."""
    world = make(heartbeat_interval=0)
    for name, value in request.param.items():
        setattr(world.sqs, name, value)
    return world


def received_elsewhere(queue):
    """What another worker gets of the queue now."""
    return queue.sqs.receive(queue.url, 10, 0, EVERYTHING)


@pytest.mark.parametrize("name", ["q", "q.fifo"])
def test_a_late_retry_changes_nothing_of_what_another_worker_has(open_world, events, name):
    queue = open_world.queue(name)
    (one,) = open_world.deliveries(queue, "a")
    open_world.clock.advance(TIMEOUT)
    (theirs,) = received_elsewhere(queue)
    one.settle(Hide(0))
    events.wait(Lost)
    assert open_world.entries(CHANGES) == []
    assert received_elsewhere(queue) == [], "it is hidden for the other worker"
    assert queue.sqs.delete(queue.url, [theirs["ReceiptHandle"]]).failed == {}
    assert factories.left(queue) == 0


def test_a_late_success_is_deleted_now_or_when_it_comes_back(open_world, events):
    queue = open_world.queue()
    (one,) = open_world.deliveries(queue, "a")
    open_world.clock.advance(TIMEOUT)
    received_elsewhere(queue)  # by a worker that dies with it
    one.settle(Delete())
    events.wait(Deleted)
    if open_world.sqs.old_handle_deletes:
        assert factories.left(queue) == 0
        return
    open_world.clock.advance(TIMEOUT)
    open_world.consumer._receivers.get("q").expect("what comes back", open_world.clock.monotonic() - 1)
    events.wait(FinishedBefore)
    wait_until(lambda: factories.left(queue) == 0, SOON, "its new handle to delete it")
    assert len(open_world.handed) == 1, "it ran once"


def test_a_late_success_of_a_fifo_queue_is_lost_and_never_called_deleted(open_world, events):
    queue = open_world.queue("q.fifo")
    (one,) = open_world.deliveries(queue, "a")
    open_world.clock.advance(TIMEOUT)
    one.settle(Delete())
    events.wait(Lost)
    assert events.of(Deleted) == []
    assert factories.left(queue) == 1, "it comes again"
