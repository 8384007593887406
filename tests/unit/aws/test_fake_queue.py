"""Amazon's rules to the second, and the switches; tests/conformance replays the others on the fake."""

from dataclasses import replace

import pytest
from support.bytecodes import bytecodes
from support.factories import queue as make_queue

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, RequestRefusedError
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

OPTIONS = ReceiveOptions(visibility_timeout=30, system_attributes=("All",))


@pytest.fixture
def fifo_url(sqs):
    return sqs.create_queue("q.fifo", {"FifoQueue": "true"}, {})


def receive(sqs, url, options=OPTIONS):
    return sqs.receive(url, 1, 0, options)


@pytest.fixture
def message(sqs, url):
    sqs.send(url, OutgoingMessage("task"))
    return receive(sqs, url)[0]


def hide(sqs, url, message, seconds):
    return sqs.change_visibility(url, [(message["ReceiptHandle"], seconds)]).failed.get(0)


def send_to_groups(sqs, url, groups):
    for group in groups:
        sqs.send(url, OutgoingMessage(f"of {group}", group_id=group, deduplication_id=group))


def test_a_message_is_hidden_until_the_very_second_of_its_deadline(sqs, url, clock, message):
    clock.advance(29.9)
    assert receive(sqs, url) == []
    clock.advance(0.1)
    (again,) = receive(sqs, url)
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    clock.advance(20)
    assert hide(sqs, url, again, 30) is None, "an extension counts from now"
    clock.advance(29)
    assert receive(sqs, url) == []
    clock.advance(1)
    assert receive(sqs, url)


@pytest.mark.parametrize("act", ["delete", "hide"])
def test_a_fifo_queue_refuses_an_old_handle(sqs, fifo_url, clock, act):
    sqs.send(fifo_url, OutgoingMessage("task", group_id="a", deduplication_id="1"))
    (first,) = receive(sqs, fifo_url)
    clock.advance(30)
    receive(sqs, fifo_url)
    refused = (
        hide(sqs, fifo_url, first, 0)
        if act == "hide"
        else sqs.delete(fifo_url, [first["ReceiptHandle"]]).failed[0]
    )
    assert isinstance(refused, ReceiptHandleInvalidError)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
@pytest.mark.parametrize(
    ("late", "refused", "visible"),
    [
        (LateChange.HIDES, False, 0),
        (LateChange.DOES_NOTHING, False, 1),
        (LateChange.IS_REFUSED, True, 1),
    ],
)
def test_a_visibility_change_after_the_visibility_timeout_is_answered_in_several_ways(
    sqs, url, fifo_url, clock, kind, late, refused, visible
):
    if kind == "fifo":
        sqs.late_fifo_change, url = late, fifo_url
    else:
        sqs.late_change = late
    send_to_groups(sqs, url, "a")
    (message,) = receive(sqs, url)
    assert hide(sqs, url, message, 30) is None
    clock.advance(30)
    assert isinstance(hide(sqs, url, message, 60), ReceiptHandleInvalidError) is refused
    assert len(receive(sqs, url)) == visible


def test_12_hours_count_from_the_newest_receive(sqs, url, clock, message):
    clock.advance(29)
    refused = hide(sqs, url, message, VISIBILITY_HORIZON_SECONDS - 28)
    assert isinstance(refused, RequestRefusedError)
    clock.advance(1)  # it was not hidden for less, either
    (again,) = receive(sqs, url)
    assert hide(sqs, url, again, VISIBILITY_HORIZON_SECONDS) is None


def test_a_message_that_was_moved_is_no_more_its_old_queues(sqs, clock):
    url = make_queue(sqs, "redriven", letters=make_queue(sqs, "dead_letters"), most=1).url
    sqs.send(url, OutgoingMessage("poison"))
    (poison,) = receive(sqs, url)
    clock.advance(30)
    assert receive(sqs, url) == []
    assert isinstance(hide(sqs, url, poison, 1), ReceiptHandleInvalidError)


@pytest.mark.parametrize("deletes", [False, True])
def test_an_old_handle_may_be_told_to_delete(clock, deletes):
    sqs = FakeSQS(clock, old_handle_deletes=deletes)
    url = sqs.create_queue("q", {}, {})
    sqs.send(url, OutgoingMessage("task"))
    (first,) = receive(sqs, url)
    clock.advance(30)
    receive(sqs, url)
    assert sqs.delete(url, [first["ReceiptHandle"]]).failed == {}
    clock.advance(30)
    assert len(receive(sqs, url)) == (not deletes)


def test_a_message_that_was_hidden_late_and_came_back_is_handed_out_once(sqs, clock, url):
    sqs.late_change = LateChange.HIDES
    sqs.send(url, OutgoingMessage("task"))
    (received,) = sqs.receive(url, 10, 0, OPTIONS)
    clock.advance(30)
    assert sqs.receive(url, 1, 0, ReceiveOptions(0, ()))
    sqs.change_visibility(url, [(received["ReceiptHandle"], 10)])
    assert not sqs.receive(url, 10, 0, OPTIONS)
    clock.advance(10)
    assert len(sqs.receive(url, 10, 0, ReceiveOptions(0, ()))) == 1
    assert len(sqs.receive(url, 10, 0, OPTIONS)) == 1


def test_a_purged_queue_takes_messages_again(sqs, url):
    sqs.send(url, OutgoingMessage("gone"))
    sqs.purge(url)
    sqs.send(url, OutgoingMessage("here"))
    assert [message["Body"] for message in sqs.receive(url, 10, 0, OPTIONS)] == ["here"]


@pytest.mark.parametrize(("name", "attributes"), [("short", {}), ("short.fifo", {"FifoQueue": "true"})])
def test_a_message_is_gone_when_its_retention_is_over(sqs, clock, name, attributes):
    url = sqs.create_queue(name, {"MessageRetentionPeriod": "60", **attributes}, {})
    group = {"group_id": "g", "deduplication_id": "d"} if attributes else {}
    sqs.send(url, OutgoingMessage("a", {}, **group))
    clock.advance(59)
    assert receive(sqs, url, replace(OPTIONS, visibility_timeout=0))
    clock.advance(1)
    assert receive(sqs, url) == []


def test_a_duplicate_is_taken_again_after_five_minutes(sqs, clock):
    url = sqs.create_queue("c.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}, {})
    task = OutgoingMessage("task", group_id="a")
    first = sqs.send(url, task)
    clock.advance(299)
    assert sqs.send(url, task) == first
    clock.advance(1)
    assert sqs.send(url, task) != first


def attempt(sqs, url, attempt_id="1"):
    return receive(sqs, url, ReceiveOptions(30, ("All",), attempt_id=attempt_id))


def test_the_same_attempt_receives_the_same_messages_and_hides_them_anew(sqs, clock, fifo_url):
    send_to_groups(sqs, fifo_url, "ab")
    first = attempt(sqs, fifo_url)
    clock.advance(20)
    assert attempt(sqs, fifo_url) == first
    clock.advance(29)
    others = sqs.receive(fifo_url, 10, 0, ReceiveOptions(30, attempt_id="2"))
    assert [message["Body"] for message in others] == ["of b"]
    assert first[0]["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize("change", ["deleted", "visibility changed", "received by another"])
def test_an_attempt_whose_messages_were_changed_receives_anew(sqs, clock, fifo_url, change):
    send_to_groups(sqs, fifo_url, "ab")
    (first,) = attempt(sqs, fifo_url)
    match change:
        case "deleted":
            sqs.delete(fifo_url, [first["ReceiptHandle"]])
        case "visibility changed":
            hide(sqs, fifo_url, first, 100)
        case _:
            clock.advance(30)
            attempt(sqs, fifo_url, "2")
    assert [message["Body"] for message in attempt(sqs, fifo_url)] == ["of b"]


def test_an_attempt_is_known_for_five_minutes_after_it_received_something(sqs, clock, fifo_url):
    assert attempt(sqs, fifo_url) == []
    send_to_groups(sqs, fifo_url, "a")
    for _ in range(15):
        assert len(attempt(sqs, fifo_url)) == 1
        clock.advance(20)
    assert attempt(sqs, fifo_url) == []


@pytest.mark.parametrize("hidden", [0, 30])
def test_a_backlog_makes_no_call_slower(sqs, clock, hidden):
    def work(backlog):
        url = sqs.create_queue(f"of-{backlog}", {}, {})
        for _ in range(backlog):
            sqs.send(url, OutgoingMessage("task"))
        while hidden and sqs.receive(url, 10, 0, OPTIONS):
            pass
        clock.advance(hidden)  # all come back at once
        sqs.receive(url, 1, 0, OPTIONS)

        def once():
            sqs.send(url, OutgoingMessage("task"))
            handles = [message["ReceiptHandle"] for message in sqs.receive(url, 10, 0, OPTIONS)]
            sqs.change_visibility(url, [(handle, 60) for handle in handles])
            sqs.delete(url, handles)
            assert len(handles) == 10

        return bytecodes(once)

    assert work(10_000) <= 1.2 * work(100)
