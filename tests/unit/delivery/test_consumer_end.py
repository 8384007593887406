"""How consumers end whose long polls are open: as few receives as possible, and nothing hidden for long."""

from __future__ import annotations

import pytest
from support import factories
from support.factories import counts
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.delivery.model import Lapse
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.shutdown import HAND_BACK_SECONDS
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

RECEIVE = ReceiveOptions(120, ("ApproximateReceiveCount",))


class SilentSQS(FakeSQS):
    """It may be silent when visibilities are to be changed."""

    silent = False

    def change_visibility(self, queue_url, changes):
        if self.silent:
            raise UnavailableError("no answer")
        return super().change_visibility(queue_url, changes)


class Process:
    """A consumer as a process of its own has it, whose long polls wait as SQS's do."""

    def __init__(self, sqs, queue):
        self.sqs = sqs
        self.queue = queue
        self.handed = []
        self.buffer = Buffer()
        self.queue_consumer = factories.queue_consumer(SYSTEM_CLOCK, buffer=self.buffer)
        self.queue_consumer.consume(queue, self.handed.append)
        self.receiver = self.queue_consumer._receivers.get(queue.name)

    def polls(self):
        """Whether a poll is in flight."""
        return not self.receiver.wait_for_polls(0)

    def holds(self, count):
        """Hand over what has come, as far as that number."""
        self.buffer.dispatch(SYSTEM_CLOCK)
        return len(self.handed) == count

    def end(self):
        """As a shutdown begins."""
        now = SYSTEM_CLOCK.monotonic()
        self.queue_consumer.stop_polling()
        self.queue_consumer.end_by(now + SOON, now + SOON)

    def close(self):
        """Leave no thread: the queue is gone, which ends its polls."""
        for delivery in self.queue_consumer.ledger.all():
            delivery.settle(Lapse())
        self.queue_consumer.close()
        self.buffer.close()
        wait_until(lambda: not self.receiver._threads, SOON, "the receiver's end")


@pytest.fixture
def sqs():
    return SilentSQS(SYSTEM_CLOCK)


@pytest.fixture
def queue(sqs):
    return factories.queue(sqs)


@pytest.fixture
def start(sqs, queue):
    processes = []

    def start():
        processes.append(Process(sqs, queue))
        wait_until(processes[-1].polls, SOON, "a poll")
        return processes[-1]

    yield start
    for process in processes:
        process.queue_consumer.stop_polling()
    sqs.delete_queue(queue.url)
    for process in processes:
        process.close()


def receives(sqs, queue):
    """How often each visible message was received, this look included."""
    return sorted(
        int(message["Attributes"]["ApproximateReceiveCount"])
        for message in sqs.receive(queue.url, 10, 0, RECEIVE)
    )


def test_one_message_ends_the_long_poll_and_the_others_are_received_once(start, sqs, queue):
    process = start()
    factories.send(queue, *"abcd")
    wait_until(lambda: process.holds(4) and process.polls(), SOON, "four and a poll")
    process.end()
    released = process.queue_consumer.give_back_unstarted()
    assert len(released) == 4
    assert not process.polls()
    wait_until(lambda: counts(queue) == (4, 0), SOON, lambda: str(counts(queue)))
    assert receives(sqs, queue) == [2, 2, 2, 3]


def test_what_the_last_poll_brings_is_released_at_once(start, sqs, queue):
    process = start()
    process.end()
    factories.send(queue, "a")
    wait_until(lambda: not process.polls(), SOON, "the poll's end")
    wait_until(lambda: counts(queue) == (1, 0), SOON, lambda: str(counts(queue)))
    assert receives(sqs, queue) == [2]


def test_a_message_does_not_go_from_one_worker_that_ends_to_the_next(start, sqs, queue):
    processes = [start() for _ in range(6)]
    for process in processes:
        process.end()
    factories.send(queue, "a")
    wait_until(lambda: counts(queue) == (0, 1), SOON, lambda: str(counts(queue)))
    wait_until(lambda: not any(len(p.queue_consumer.ledger) for p in processes), SOON, "the settlements")
    assert sum(process.polls() for process in processes) == 4, "two of six have received it"
    ((_, seconds),) = factories.entries(sqs, factories.CHANGES)[-1]
    assert 0 < seconds <= processes[0].queue_consumer.options.wait_time_seconds, (
        "until the polls of all are over"
    )


def test_what_an_ending_waits_for_is_bounded_where_sqs_does_not_answer(start, sqs, queue):
    process = start()
    factories.send(queue, "a", "b")
    wait_until(lambda: process.holds(2), SOON, "two messages")
    sqs.silent = True
    began = SYSTEM_CLOCK.monotonic()
    process.queue_consumer.stop_polling()
    process.queue_consumer.end_by(began, began)
    process.queue_consumer.give_back_unstarted()
    process.queue_consumer.close()
    assert SYSTEM_CLOCK.monotonic() - began < HAND_BACK_SECONDS + 3
    assert counts(queue) == (0, 2)
    sqs.silent = False
    wait_until(lambda: counts(queue) == (2, 0), SOON, "another try")
