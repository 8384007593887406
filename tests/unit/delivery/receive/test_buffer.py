"""In order, to one reader, who is woken once however many parcels arrive."""

from __future__ import annotations

import select
import threading

import pytest
from support.processes import SOON

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.events import Facts

QUEUE = Queue("q", "memory://q", FakeSQS())


def buffered(number):
    delivery = Delivery(QUEUE, str(number), Facts("q", str(number), 1, 0), 0, 120, None)
    return BufferedMessage(delivery, {"number": number}, print)


@pytest.fixture
def buffer():
    buffer = Buffer()
    yield buffer
    buffer.close()


def readable(buffer):
    return bool(select.select([buffer.fileno()], [], [], 0)[0])


def test_parcels_come_out_in_order(buffer):
    buffered_messages = [buffered(number) for number in range(5)]
    buffer.put(buffered_messages[:2])
    buffer.put(buffered_messages[2:])
    assert len(buffer) == 5
    assert [buffer.get() for _ in range(6)] == [*buffered_messages, None]


def test_what_is_wanted_back_is_taken_out_and_the_rest_keeps_its_order(buffer):
    first, second, third = buffered_messages = [buffered(1), buffered(2), buffered(3)]
    buffer.put(buffered_messages)
    assert buffer.take(lambda one: one is second) == [second]
    assert [buffer.get() for _ in range(3)] == [first, third, None]


def test_an_arrival_wakes_an_event_loop(buffer):
    assert not readable(buffer)
    buffer.put([buffered(1)])
    assert readable(buffer)


def test_nothing_wakes_nobody(buffer):
    assert not readable(buffer)
    buffer.put([])
    assert not readable(buffer)


def test_what_arrived_before_the_loop_came_wakes_it_too(buffer):
    buffer.put([buffered(1)])
    assert readable(buffer)


def test_a_loop_that_saw_the_wake_up_is_woken_anew_by_what_comes_next(buffer):
    buffer.fileno()
    buffer.put([buffered(1)])
    buffer.woken()
    assert not readable(buffer)
    buffer.put([buffered(2)])
    assert readable(buffer)


def test_many_arrivals_are_one_wake_up(buffer):
    buffer.fileno()
    for number in range(100_000 // 100):
        buffer.put([buffered(number)])
    buffer.woken()
    assert not readable(buffer)
    assert len(buffer) == 1000


def test_a_reader_that_stops_early_wakes_itself(buffer):
    buffer.fileno()
    buffer.put([buffered(1), buffered(2)])
    buffer.woken()
    buffer.get()
    buffer.wake()
    assert readable(buffer)


def test_a_wake_up_without_a_loop_is_harmless(buffer):
    buffer.wake()
    buffer.woken()
    buffer.put([buffered(1)])


def test_the_descriptor_stays_the_same(buffer):
    assert buffer.fileno() == buffer.fileno()


def test_it_can_be_closed_twice_and_used_again(buffer):
    buffer.fileno()
    buffer.put([buffered(1)])
    buffer.close()
    buffer.close()
    buffer.put([buffered(2)])
    assert readable(buffer)
    assert len(buffer) == 2


def test_waiting_for_nothing_ends_in_time(buffer):
    assert buffer.wait(0) is False


def test_waiting_for_what_is_there_does_not_wait(buffer):
    buffer.put([buffered(1)])
    assert buffer.wait(None) is True


def test_a_reader_without_an_event_loop_is_woken_by_an_arrival(buffer):
    seen = []
    reader = threading.Thread(target=lambda: seen.append(buffer.wait(SOON)), daemon=True)
    reader.start()
    buffer.put([buffered(1)])
    reader.join(SOON)
    assert seen == [True]
