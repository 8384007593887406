"""Amazon's rules that emulators do not keep, and what only the fake can do."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.bytecodes import bytecodes
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import ACCOUNT, FakeSQS
from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.aws.port import MoveTask, OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import (
    QueueDoesNotExistError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
    ThrottledError,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES, VISIBILITY_HORIZON_SECONDS

OPTIONS = ReceiveOptions(visibility_timeout=30, system_attributes=("All",))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def sqs(clock):
    return FakeSQS(clock)


@pytest.fixture
def url(sqs):
    return sqs.create_queue("q", {}, {})


@pytest.fixture
def fifo_url(sqs):
    return sqs.create_queue("q.fifo", {"FifoQueue": "true"}, {})


def with_dead_letters(sqs):
    """The URLs of a queue whose messages are received once, and of its dead-letter queue."""
    dead_letters = sqs.create_queue("dead_letters", {}, {})
    arn = sqs.queue_attributes(dead_letters, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    return sqs.create_queue("redriven", {"RedrivePolicy": policy}, {}), dead_letters


def receive(sqs, url, options=OPTIONS):
    return sqs.receive(url, 1, 0, options)


@pytest.fixture
def message(sqs, url):
    sqs.send(url, OutgoingMessage("task"))
    return receive(sqs, url)[0]


def hide(sqs, url, message, seconds):
    return sqs.change_visibility(url, [(message["ReceiptHandle"], seconds)]).failed.get(0)


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


def test_an_old_handle_deletes_nothing_once_the_message_was_received_again_and_still_hides_it(
    sqs, url, clock, message
):
    """Recorded from AWS: a visibility timeout of 0 by an old handle shows what was received anew."""
    clock.advance(30)
    (newer,) = receive(sqs, url)
    assert sqs.delete(url, [message["ReceiptHandle"]]).failed == {}, "it is answered yes"
    assert hide(sqs, url, message, 0) is None
    assert receive(sqs, url)[0]["MessageId"] == newer["MessageId"]


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


def test_a_fifo_queue_deletes_nothing_after_the_visibility_timeout(sqs, fifo_url, clock):
    sqs.send(fifo_url, OutgoingMessage("task", group_id="a", deduplication_id="1"))
    (first,) = receive(sqs, fifo_url)
    clock.advance(30)
    refused = sqs.delete(fifo_url, [first["ReceiptHandle"]]).failed[0]
    assert isinstance(refused, ReceiptHandleInvalidError)
    assert "has expired" in str(refused)
    (second,) = receive(sqs, fifo_url)
    for _ in range(2):
        assert sqs.delete(fifo_url, [second["ReceiptHandle"]]).failed == {}, "deleting twice is no error"


@pytest.mark.parametrize(
    ("late", "refused", "visible"),
    [
        (LateChange.HIDES, False, 0),
        (LateChange.DOES_NOTHING, False, 1),
        (LateChange.IS_REFUSED, True, 1),
    ],
)
def test_a_visibility_change_after_the_visibility_timeout_is_answered_in_several_ways(
    sqs, url, clock, message, late, refused, visible
):
    sqs.late_change = late
    assert hide(sqs, url, message, 30) is None
    clock.advance(30)
    assert isinstance(hide(sqs, url, message, 60), ReceiptHandleInvalidError) is refused
    assert len(receive(sqs, url)) == visible


@pytest.mark.parametrize("settle", ["extend", "delete"])
def test_a_late_handle_still_holds_a_message_that_nobody_received_meanwhile(sqs, url, clock, message, settle):
    sqs.late_change = LateChange.HIDES
    clock.advance(100)
    if settle == "extend":
        assert hide(sqs, url, message, 60) is None
    else:
        assert sqs.delete(url, [message["ReceiptHandle"]]).failed == {}
    assert receive(sqs, url) == []


@pytest.mark.parametrize(("age", "seconds"), [(29, VISIBILITY_HORIZON_SECONDS - 28), (0, -1)])
def test_what_lies_beyond_12_hours_from_the_receive_is_refused_and_not_clamped(
    sqs, url, clock, message, age, seconds
):
    clock.advance(age)
    refused = hide(sqs, url, message, seconds)
    assert isinstance(refused, RequestRefusedError)
    assert refused.code == "InvalidParameterValue"
    clock.advance(30 - age)
    (again,) = receive(sqs, url)
    assert hide(sqs, url, again, VISIBILITY_HORIZON_SECONDS) is None, "12 hours count from the newest receive"


def test_a_dead_letters_receives_go_on_and_it_says_where_it_comes_from(sqs, clock):
    url, dead_letters = with_dead_letters(sqs)
    sqs.send(url, OutgoingMessage("poison"))
    (poison,) = receive(sqs, url)
    clock.advance(30)
    assert receive(sqs, url) == []
    attributes = receive(sqs, dead_letters)[0]["Attributes"]
    assert attributes["ApproximateReceiveCount"] == "2"
    assert attributes["DeadLetterQueueSourceArn"].endswith(":redriven")
    assert isinstance(hide(sqs, url, poison, 1), ReceiptHandleInvalidError)


def test_the_counts_tell_waiting_from_delayed_from_in_flight(sqs, url, message):
    sqs.send(url, OutgoingMessage("later", delay=10))
    sqs.send(url, OutgoingMessage("now"))
    names = ["", "Delayed", "NotVisible"]
    counts = sqs.queue_attributes(url, [f"ApproximateNumberOfMessages{name}" for name in names])
    assert list(counts.values()) == ["1", "1", "1"]


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


def sent(body, **fields):
    return lambda sqs, url: sqs.send(url, OutgoingMessage(body, **fields))


REFUSED = {
    "an attempt id": attempt,
    "no visibility changes": lambda sqs, url: sqs.change_visibility(url, []),
    "eleven visibility changes": lambda sqs, url: sqs.change_visibility(url, [("handle", 1)] * 11),
    "no body": sent(""),
    "a body that is too long": sent("x" * (MESSAGE_BYTES + 1)),
    "eleven attributes": sent("task", attributes={str(i): {} for i in range(11)}),
    "an empty attribute": sent("task", attributes={"a": {"StringValue": ""}}),
}
REFUSED_BY_FIFO = {
    "no group": sent("task", deduplication_id="1"),
    "no deduplication id": sent("task", group_id="a"),
    "a delay of its own": sent("task", delay=1, group_id="a", deduplication_id="1"),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_a_standard_queue_refuses(sqs, url, call):
    with pytest.raises(RequestRefusedError):
        call(sqs, url)


@pytest.mark.parametrize("call", REFUSED_BY_FIFO.values(), ids=REFUSED_BY_FIFO)
def test_a_fifo_queue_refuses(sqs, fifo_url, call):
    with pytest.raises(RequestRefusedError):
        call(sqs, fifo_url)


def test_a_failure_in_store_hits_the_next_call_of_its_action_and_no_other(sqs, url, message):
    sqs.fail_next("DeleteMessageBatch", ThrottledError("slow down"))
    assert hide(sqs, url, message, 60) is None
    with pytest.raises(ThrottledError):
        sqs.delete(url, [message["ReceiptHandle"]])
    assert sqs.delete(url, [message["ReceiptHandle"]]).failed == {}


def test_a_failure_in_store_can_hit_one_entry_of_a_batch(sqs, url, clock):
    for body in "ab":
        sqs.send(url, OutgoingMessage(body))
    handles = [message["ReceiptHandle"] for message in sqs.receive(url, 10, 0, OPTIONS)]
    error = ThrottledError("slow down")
    sqs.fail_next("DeleteMessageBatch", error, position=0)
    assert sqs.delete(url, handles).failed == {0: error}
    clock.advance(30)
    assert [message["Body"] for message in sqs.receive(url, 10, 0, OPTIONS)] == ["a"]


def test_every_call_is_on_record(sqs, url):
    sqs.delete(url, ["handle"])
    assert [action for action, _ in sqs.calls] == ["CreateQueue", "DeleteMessageBatch"]
    assert sqs.calls[-1] == ("DeleteMessageBatch", {"queue_url": url, "handles": ["handle"]})


def test_there_is_one_account(sqs, url):
    assert sqs.queue_url("q", ACCOUNT) == url
    with pytest.raises(QueueDoesNotExistError):
        sqs.queue_url("q", "999999999999")


def test_a_long_poll_returns_at_once_with_a_clock_that_nobody_turns(sqs, url):
    assert sqs.receive(url, 1, 20, OPTIONS) == []


@pytest.mark.parametrize("event", ["sent", "released", "dead-lettered"])
def test_a_waiting_poll_wakes_up_for_a_message(event):
    sqs = FakeSQS()
    redriven, dead_letters = with_dead_letters(sqs)
    if event == "dead-lettered":
        url, polled = redriven, dead_letters
    else:
        url = polled = sqs.create_queue("q", {}, {})
    sqs.send(url, OutgoingMessage("task"))
    (message,) = receive(sqs, url)
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(sqs.receive, polled, 1, 20, OPTIONS)
        started = time.monotonic()
        if event == "sent":
            sqs.send(url, OutgoingMessage("task"))
        else:
            hide(sqs, url, message, 0)
        if event == "dead-lettered":
            assert receive(sqs, url) == []
        assert [message["Body"] for message in poll.result()] == ["task"]
    assert time.monotonic() - started < 15


def test_a_waiting_poll_fails_when_its_queue_is_deleted():
    sqs = FakeSQS()
    url = sqs.create_queue("q", {}, {})
    timer = threading.Timer(0.05, sqs.delete_queue, (url,))
    timer.start()
    with pytest.raises(SQSError):
        sqs.receive(url, 1, 20, OPTIONS)
    timer.join()


def send_to_groups(sqs, url, groups):
    for group in groups:
        sqs.send(url, OutgoingMessage(f"of {group}", group_id=group, deduplication_id=group))


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


def test_a_move_task_empties_a_dead_letter_queue_that_a_policy_names(sqs):
    dead = sqs.create_queue("dead", {}, {})
    arn = sqs.queue_attributes(dead, ["QueueArn"])["QueueArn"]
    sqs.send(dead, OutgoingMessage("x", {"a": {"DataType": "String", "StringValue": "1"}}))
    with pytest.raises(RequestRefusedError, match="Dead Letter Queue"):
        sqs.start_move_task(arn, arn)
    for arns in ((arn, f"{arn}-missing"), (f"{arn}-missing", arn)):
        with pytest.raises(RequestRefusedError, match=r"There is no queue '\S+-missing'"):
            sqs.start_move_task(*arns)
    assert sqs.latest_move_task(arn) is None
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})}
    url = sqs.create_queue("source", policy, {})
    sqs.start_move_task(arn, sqs.queue_attributes(url, ["QueueArn"])["QueueArn"])
    assert replace(sqs.latest_move_task(arn), started=None) == MoveTask("COMPLETED", 1, 1)
    (message,) = sqs.receive(url, 10, 0, ReceiveOptions(message_attributes=("All",)))
    assert (message["Body"], list(message["MessageAttributes"])) == ("x", ["a"])
    assert sqs.receive(dead, 10, 0, ReceiveOptions()) == []


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


def test_messages_that_come_back_go_before_those_that_were_sent_later(sqs, clock, url):
    for body in "abc":
        sqs.send(url, OutgoingMessage(body))
    sqs.receive(url, 2, 0, OPTIONS)
    clock.advance(30)
    assert [message["Body"] for message in sqs.receive(url, 10, 0, OPTIONS)] == ["a", "b", "c"]


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


@pytest.mark.parametrize(
    ("late", "refused", "visible"),
    [
        (LateChange.HIDES, False, 0),
        (LateChange.DOES_NOTHING, False, 1),
        (LateChange.IS_REFUSED, True, 1),
    ],
)
def test_a_fifo_queue_has_a_switch_of_its_own_for_late_changes(sqs, fifo_url, clock, late, refused, visible):
    sqs.late_fifo_change = late
    sqs.send(fifo_url, OutgoingMessage("task", group_id="a", deduplication_id="1"))
    (message,) = receive(sqs, fifo_url)
    clock.advance(30)
    assert isinstance(hide(sqs, fifo_url, message, 60), ReceiptHandleInvalidError) is refused
    assert len(receive(sqs, fifo_url)) == visible


def test_a_name_of_a_deleted_queue_may_be_told_not_to_rest(clock):
    sqs = FakeSQS(clock, names_rest=False)
    for _ in range(2):
        sqs.delete_queue(sqs.create_queue("q", {}, {}))
    sqs.names_rest = True
    with pytest.raises(ThrottledError, match="60 seconds"):
        sqs.create_queue("q", {}, {})
    clock.advance(60)
    assert sqs.create_queue("q", {}, {})


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
