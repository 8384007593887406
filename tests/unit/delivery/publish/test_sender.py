"""Batches leave while messages are still coming, several side by side, and closing means sent."""

import threading
from collections import Counter
from dataclasses import replace

import pytest
from support.clock import FakeClock
from support.factories import EVERYTHING, sqs_queue
from support.processes import SOON

from celery_sqs_visibility.aws import queues
from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core import pending
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages, PayloadStore
from celery_sqs_visibility.delivery.publish import sender as module
from celery_sqs_visibility.delivery.publish.sender import MAX_PENDING, MAX_SENDERS, Sender
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

BATCHES = "SendMessageBatch"
OUTAGE = ["ERROR", "WARNING"]  # as it begins, and when it is over


class GatedSQS(FakeSQS):
    """Sends when the test opens the gate; counts who waits there."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)

    def send_batch(self, queue_url, messages, **options):
        self.waiting.release()
        assert self.gate.wait(SOON)
        return super().send_batch(queue_url, messages, **options)


def put(sender, queue, *ids):
    return [sender.put(queue, OutgoingMessage(f"body of {i}"), str(i)) for i in ids]


def batches(sqs):
    return [len(arguments["messages"]) for action, arguments in sqs.calls if action == BATCHES]


def bodies(queue):
    receipts = iter(lambda: queue.sqs.receive(queue.url, 10, 0, EVERYTHING), [])
    return Counter(message["Body"] for messages in receipts for message in messages)


@pytest.fixture(autouse=True)
def window(monkeypatch):
    """So long that no batch leaves half-full because this process was kept waiting."""
    monkeypatch.setattr(pending, "LINGER_SECONDS", 60.0)


@pytest.fixture
def sqs():
    return FakeSQS()


@pytest.fixture
def queue(sqs):
    return sqs_queue(sqs=sqs)


@pytest.mark.parametrize(("count", "requests"), [(1000, [10] * 100), (13, [3, 10])])
def test_a_thousand_messages_are_a_hundred_requests_and_closing_sends_what_is_left(
    sqs, queue, count, requests
):
    sender = Sender()
    assert all(put(sender, queue, *range(count)))
    assert sender.close() == ([], count)
    assert sorted(batches(sqs)) == requests
    assert bodies(queue) == {f"body of {number}": 1 for number in range(count)}
    for thread in list(sender.lane._pump._threads):
        thread.join(SOON)
        assert not thread.is_alive()


def test_what_was_never_used_costs_nothing_and_nothing_goes_into_a_closed_sender(sqs, queue):
    sender = Sender()
    assert sender.close() == ([], 0)
    assert put(sender, queue, 1) == [False]
    assert [action for action, _ in sqs.calls] == ["CreateQueue"]


def test_full_batches_leave_at_once_several_at_a_time():
    sqs = GatedSQS()
    queue, sender = sqs_queue(sqs=sqs), Sender()
    put(sender, queue, *range(10 * MAX_SENDERS + 10))
    for _ in range(MAX_SENDERS):
        assert sqs.waiting.acquire(timeout=SOON)
    assert not sqs.waiting.acquire(blocking=False)
    sqs.gate.set()
    sender.close()
    assert batches(sqs) == [10] * (MAX_SENDERS + 1)


@pytest.mark.parametrize(
    ("most_bytes", "pending_before"), [(None, MAX_PENDING), (10, 2)], ids=["in messages", "in bytes: 9 each"]
)
def test_publishing_waits_where_sqs_takes_less_than_is_published(monkeypatch, most_bytes, pending_before):
    if most_bytes:
        monkeypatch.setattr(pending, "LINGER_SECONDS", 0.0)
        monkeypatch.setattr(module, "MAX_PENDING_BYTES", most_bytes)
    sqs = GatedSQS()
    queue, sender = sqs_queue(sqs=sqs), Sender()
    put(sender, queue, *range(pending_before))
    publisher = threading.Thread(target=put, args=(sender, queue, "one more"))
    publisher.start()
    publisher.join(0.1)
    assert publisher.is_alive()
    sqs.gate.set()
    publisher.join(SOON)
    assert sender.close() == ([], pending_before + 1)


def test_several_threads_fill_the_same_batches(sqs, queue):
    sender = Sender()
    threads = [threading.Thread(target=put, args=(sender, queue, *range(n, 400, 8))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.close()
    assert batches(sqs) == [10] * 40
    assert len(bodies(queue)) == 400


@pytest.mark.parametrize(
    ("error", "position", "again", "logged"),
    [
        (ThrottledError("slow down"), None, 10, OUTAGE),
        (ThrottledError("slow down"), 3, 1, OUTAGE),
        (ZeroDivisionError("a bug below"), None, 10, ["ERROR", *OUTAGE]),
    ],
)
def test_what_fails_is_sent_again(sqs, queue, error, position, again, logged, caplog):
    sqs.fail_next(BATCHES, error, position)
    sender = Sender()
    put(sender, queue, *range(10))
    assert sender.close() == ([], 10)
    assert batches(sqs) == [10, again]
    assert bodies(queue) == {f"body of {number}": 1 for number in range(10)}
    assert [record.levelname for record in caplog.records] == logged


def test_what_cannot_be_sent_is_told_with_its_reason(sqs, queue):
    denied = AccessDeniedError("no")
    sqs.fail_next(BATCHES, denied, 3)
    sender = Sender()
    put(sender, queue, *range(10))
    assert sender.close() == ([("3", denied)], 10)


def test_a_queue_that_is_gone_is_told_of(sqs, queue):
    sqs.delete_queue(queue.url)
    missing = []
    sender = Sender(missing.append)
    put(sender, queue, 1)
    ((task_id, reason),), _ = sender.close()
    assert task_id == "1"
    assert isinstance(reason, QueueDoesNotExistError)
    assert missing == ["q"]


def test_a_queue_that_this_process_made_just_now_is_sent_to_a_moment_later(sqs, queue, monkeypatch):
    monkeypatch.setattr(queues, "NEW_QUEUE_PAUSES_SECONDS", (0, 0))
    for _ in range(2):
        sqs.fail_next(BATCHES, QueueDoesNotExistError("not yet"))
    sender = Sender()
    put(sender, replace(queue, origin="created"), 1)
    assert sender.close() == ([], 1)


def test_without_a_thread_nothing_is_taken(sqs, queue, monkeypatch):
    def no_more(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    sender = Sender()
    assert put(sender, queue, 1) == [False]
    assert sender.close() == ([], 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of one that dies
def test_a_thread_that_dies_is_replaced_and_its_batch_is_sent_again(monkeypatch, caplog):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)

    class FatalSQS(FakeSQS):
        ends = True

        def send_batch(self, *arguments, **options):
            if self.ends:
                self.ends = False
                raise SystemExit
            return super().send_batch(*arguments, **options)

    sender = Sender()
    put(sender, sqs_queue(sqs=FatalSQS()), *range(10))
    assert sender.close() == ([], 10)
    assert "a thread that sends messages died; another takes its place" in caplog.messages


def test_a_batch_that_takes_long_is_waited_for_and_sent_once(monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)
    clock, sqs = FakeClock(), GatedSQS()
    queue, sender = sqs_queue(sqs=sqs), Sender(clock=clock)
    put(sender, queue, *range(10))
    assert sqs.waiting.acquire(timeout=SOON)
    closing = threading.Thread(target=sender.close)
    closing.start()
    clock.advance(3600)
    closing.join(0.1)
    assert closing.is_alive()
    sqs.gate.set()
    closing.join(SOON)
    assert batches(sqs) == [10]


def test_large_messages_are_uploaded_side_by_side_and_the_others_share_their_requests(queue, sqs):
    store = FakeObjectStore()
    sender = Sender(outgoing=OutgoingMessages(PayloadStore(store, threshold=1000)))
    for number in range(20):
        sender.put(queue, OutgoingMessage(f"{number}" + "x" * 1000 * (number % 2)), str(number))
    assert sender.close() == ([], 20)
    assert len(store.objects) == 10
    assert len([action for action, _ in sqs.calls if action == "SendMessage"]) == 10
    assert sum(batches(sqs)) == 10


def test_a_message_larger_than_a_batch_of_all_is_sent_where_there_is_a_bucket(queue):
    for outgoing, sent in ((OutgoingMessages(), 0), (OutgoingMessages(PayloadStore(FakeObjectStore())), 1)):
        sender = Sender(outgoing=outgoing)
        sender.put(queue, OutgoingMessage("x" * (MESSAGE_BYTES + 1)), "large")
        failures, _ = sender.close()
        assert len(failures) == 1 - sent
        assert all("payload_store" in str(error) for _, error in failures)
    assert sum(bodies(queue).values()) == 1


def test_a_forked_child_neither_takes_messages_nor_waits_for_its_parents(queue, monkeypatch):
    sender = Sender()
    monkeypatch.setattr(module.os, "getpid", lambda: 0)
    assert put(sender, queue, 1) == [False]
    assert sender.close() == ([], 0)
