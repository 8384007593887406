"""What the fake does for tests: failures in store, a record of calls, polls that wait."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.factories import queue

from celery_sqs_visibility.aws.fake import ACCOUNT, FakeSQS
from celery_sqs_visibility.aws.port import MoveTask, OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import QueueDoesNotExistError, RequestRefusedError, SQSError, ThrottledError

OPTIONS = ReceiveOptions(visibility_timeout=30, system_attributes=("All",))


def receive(sqs, url, options=OPTIONS):
    return sqs.receive(url, 1, 0, options)


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
    if event == "dead-lettered":
        dead_letters = queue(sqs, "dead_letters")
        url, polled = queue(sqs, letters=dead_letters, most=1).url, dead_letters.url
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
            sqs.change_visibility(url, [(message["ReceiptHandle"], 0)])
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


def test_a_move_task_empties_a_dead_letter_queue_that_a_policy_names(sqs):
    letters = queue(sqs, "dead")
    dead, arn = letters.url, letters.arn()
    sqs.send(dead, OutgoingMessage("x", {"a": {"DataType": "String", "StringValue": "1"}}))
    with pytest.raises(RequestRefusedError, match="Dead Letter Queue"):
        sqs.start_move_task(arn, arn)
    for arns in ((arn, f"{arn}-missing"), (f"{arn}-missing", arn)):
        with pytest.raises(RequestRefusedError, match=r"There is no queue '\S+-missing'"):
            sqs.start_move_task(*arns)
    assert sqs.latest_move_task(arn) is None
    source = queue(sqs, "source", letters=letters, most=1)
    sqs.start_move_task(arn, source.arn())
    assert replace(sqs.latest_move_task(arn), started=None) == MoveTask("COMPLETED", 1, 1)
    (message,) = sqs.receive(source.url, 10, 0, ReceiveOptions(message_attributes=("All",)))
    assert (message["Body"], list(message["MessageAttributes"])) == ("x", ["a"])
    assert sqs.receive(dead, 10, 0, ReceiveOptions()) == []


def test_a_name_of_a_deleted_queue_may_be_told_not_to_rest(clock):
    sqs = FakeSQS(clock, names_rest=False)
    for _ in range(2):
        sqs.delete_queue(sqs.create_queue("q", {}, {}))
    sqs.names_rest = True
    with pytest.raises(ThrottledError, match="60 seconds"):
        sqs.create_queue("q", {}, {})
    clock.advance(60)
    assert sqs.create_queue("q", {}, {})
