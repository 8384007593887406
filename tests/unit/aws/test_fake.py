"""Amazon's rules that emulators do not keep, and what only the fake can do."""

from __future__ import annotations

import threading
import time

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import ACCOUNT, FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import (
    QueueDoesNotExistError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
    ThrottledError,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES, VISIBILITY_HORIZON_SECONDS

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


def receive_one(sqs, url):
    (message,) = sqs.receive(url, 1, 0, OPTIONS)
    return message


@pytest.fixture
def message(sqs, url):
    sqs.send(url, OutgoingMessage("task"))
    return receive_one(sqs, url)


def hide(sqs, url, message, seconds):
    return sqs.change_visibility(url, [(message["ReceiptHandle"], seconds)]).failed.get(0)


def test_a_message_is_hidden_until_the_very_second_of_its_deadline(sqs, url, clock, message):
    clock.advance(29.9)
    assert sqs.receive(url, 1, 0, OPTIONS) == []
    clock.advance(0.1)
    assert receive_one(sqs, url)["Attributes"]["ApproximateReceiveCount"] == "2"


def test_an_extension_counts_from_now(sqs, url, clock, message):
    clock.advance(20)
    assert hide(sqs, url, message, 30) is None
    clock.advance(29)
    assert sqs.receive(url, 1, 0, OPTIONS) == []
    clock.advance(1)
    assert receive_one(sqs, url)


def test_an_old_handle_extends_nothing_once_the_message_was_received_again(sqs, url, clock, message):
    clock.advance(30)
    newer = receive_one(sqs, url)
    assert isinstance(hide(sqs, url, message, 600), ReceiptHandleInvalidError)
    assert hide(sqs, url, newer, 600) is None


def test_an_old_handle_is_answered_yes_and_deletes_nothing(sqs, url, clock, message):
    clock.advance(30)
    newer = receive_one(sqs, url)
    assert sqs.delete(url, [message["ReceiptHandle"]]).failed == {}
    clock.advance(30)
    assert receive_one(sqs, url)["MessageId"] == newer["MessageId"]


@pytest.mark.parametrize("settle", ["extend", "delete"])
def test_a_late_handle_still_holds_a_message_that_nobody_received_meanwhile(sqs, url, clock, message, settle):
    clock.advance(100)
    if settle == "extend":
        assert hide(sqs, url, message, 60) is None
    else:
        assert sqs.delete(url, [message["ReceiptHandle"]]).failed == {}
    assert sqs.receive(url, 1, 0, OPTIONS) == []


def test_what_lies_beyond_12_hours_from_the_receive_is_refused_and_not_clamped(sqs, url, clock, message):
    clock.advance(29)
    refused = hide(sqs, url, message, VISIBILITY_HORIZON_SECONDS - 28)
    assert isinstance(refused, RequestRefusedError)
    assert refused.code == "InvalidParameterValue"
    clock.advance(1)
    again = receive_one(sqs, url)
    assert hide(sqs, url, again, VISIBILITY_HORIZON_SECONDS) is None, "12 hours count from the newest receive"


@pytest.mark.parametrize("seconds", [-1, VISIBILITY_HORIZON_SECONDS + 1])
def test_an_impossible_timeout_is_refused(sqs, url, message, seconds):
    assert isinstance(hide(sqs, url, message, seconds), RequestRefusedError)


@pytest.mark.parametrize("entries", [0, BATCH_ENTRIES + 1])
def test_a_batch_of_visibility_changes_has_one_to_ten_entries(sqs, url, entries):
    with pytest.raises(RequestRefusedError):
        sqs.change_visibility(url, [("handle", 1)] * entries)


def test_a_dead_letter_starts_anew_and_says_where_it_comes_from(sqs, clock):
    dead_letters = sqs.create_queue("dead_letters", {}, {})
    arn = sqs.queue_attributes(dead_letters, ["QueueArn"])["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": "1"}}'
    url = sqs.create_queue("q", {"RedrivePolicy": policy}, {})
    sqs.send(url, OutgoingMessage("poison"))
    handle = receive_one(sqs, url)["ReceiptHandle"]
    clock.advance(30)
    assert sqs.receive(url, 1, 0, OPTIONS) == []
    attributes = receive_one(sqs, dead_letters)["Attributes"]
    assert attributes["ApproximateReceiveCount"] == "1"
    assert attributes["DeadLetterQueueSourceArn"].endswith(":q")
    assert isinstance(sqs.change_visibility(url, [(handle, 1)]).failed[0], ReceiptHandleInvalidError)


def test_the_counts_tell_waiting_from_delayed_from_in_flight(sqs, url, message):
    sqs.send(url, OutgoingMessage("later", delay=10))
    sqs.send(url, OutgoingMessage("now"))
    names = ["", "Delayed", "NotVisible"]
    counts = sqs.queue_attributes(url, [f"ApproximateNumberOfMessages{name}" for name in names])
    assert list(counts.values()) == ["1", "1", "1"]


def test_a_duplicate_is_taken_again_after_five_minutes(sqs, clock):
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue("q.fifo", attributes, {})
    first = sqs.send(url, OutgoingMessage("task", group_id="a"))
    clock.advance(299)
    assert sqs.send(url, OutgoingMessage("task", group_id="a")) == first
    clock.advance(1)
    assert sqs.send(url, OutgoingMessage("task", group_id="a")) != first


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".fifo", OutgoingMessage("no group", deduplication_id="1")),
        (".fifo", OutgoingMessage("no deduplication id", group_id="a")),
        (".fifo", OutgoingMessage("a delay of its own", delay=1, group_id="a", deduplication_id="1")),
        ("", OutgoingMessage("")),
        ("", OutgoingMessage("x" * (MESSAGE_BYTES + 1))),
        ("", OutgoingMessage("eleven attributes", {str(i): {} for i in range(11)})),
        ("", OutgoingMessage("an empty attribute", {"a": {"StringValue": ""}})),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else value.body[:20],
)
def test_a_queue_refuses(sqs, suffix, message):
    url = sqs.create_queue(f"queue{suffix}", {"FifoQueue": "true"} if suffix else {}, {})
    with pytest.raises(RequestRefusedError):
        sqs.send(url, message)


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
    assert receive_one(sqs, url)["Body"] == "a"


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
    dead_letters = sqs.create_queue("dead_letters", {}, {})
    arn = sqs.queue_attributes(dead_letters, ["QueueArn"])["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
    url = sqs.create_queue("q", {"RedrivePolicy": policy} if event == "dead-lettered" else {}, {})
    polled = dead_letters if event == "dead-lettered" else url
    if event != "sent":
        sqs.send(url, OutgoingMessage("task"))
        handle = receive_one(sqs, url)["ReceiptHandle"]
    got = []
    poll = threading.Thread(target=lambda: got.extend(sqs.receive(polled, 1, 20, OPTIONS)))
    poll.start()
    started = time.monotonic()
    if event == "sent":
        sqs.send(url, OutgoingMessage("task"))
    else:
        sqs.change_visibility(url, [(handle, 0)])
    if event == "dead-lettered":
        assert sqs.receive(url, 1, 0, OPTIONS) == []
    poll.join()
    assert [message["Body"] for message in got] == ["task"]
    assert time.monotonic() - started < 15


def test_a_waiting_poll_fails_when_its_queue_is_deleted():
    sqs = FakeSQS()
    url = sqs.create_queue("q", {}, {})
    timer = threading.Timer(0.05, sqs.delete_queue, (url,))
    timer.start()
    with pytest.raises(SQSError):
        sqs.receive(url, 1, 20, OPTIONS)
    timer.join()


def fifo_queue(sqs, *groups):
    url = sqs.create_queue("attempts.fifo", {"FifoQueue": "true"}, {})
    for group in groups:
        sqs.send(url, OutgoingMessage(f"of {group}", group_id=group, deduplication_id=group))
    return url


def attempt(sqs, url, attempt_id="1", limit=1):
    return sqs.receive(url, limit, 0, ReceiveOptions(30, ("All",), attempt_id=attempt_id))


def test_the_same_attempt_receives_the_same_messages_and_hides_them_anew(sqs, clock):
    url = fifo_queue(sqs, "a", "b")
    first = attempt(sqs, url)
    clock.advance(20)
    assert attempt(sqs, url) == first
    clock.advance(29)
    (other,) = attempt(sqs, url, "2", limit=10)
    assert other["Body"] == "of b"
    assert first[0]["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize("change", ["deleted", "visibility changed", "received by another"])
def test_an_attempt_whose_messages_were_changed_receives_anew(sqs, clock, change):
    url = fifo_queue(sqs, "a", "b")
    (first,) = attempt(sqs, url)
    match change:
        case "deleted":
            sqs.delete(url, [first["ReceiptHandle"]])
        case "visibility changed":
            sqs.change_visibility(url, [(first["ReceiptHandle"], 100)])
        case _:
            clock.advance(30)
            attempt(sqs, url, "2")
    assert [message["Body"] for message in attempt(sqs, url)] == ["of b"]


def test_an_attempt_is_known_for_five_minutes(sqs, clock):
    url = fifo_queue(sqs, "a")
    for _ in range(15):
        assert len(attempt(sqs, url)) == 1
        clock.advance(20)
    assert attempt(sqs, url) == []


def test_an_attempt_that_received_nothing_receives_what_comes(sqs):
    url = fifo_queue(sqs)
    assert attempt(sqs, url) == []
    fifo_queue(sqs, "a")
    assert len(attempt(sqs, url)) == 1


def test_a_standard_queue_takes_no_attempt_id(sqs, url):
    with pytest.raises(RequestRefusedError):
        attempt(sqs, url)
