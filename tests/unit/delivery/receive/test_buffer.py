"""In order, to one reader, who is woken once however many messages arrive."""

import os
import select
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import factories
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage

QUEUE = factories.sqs_queue()


def buffered(number):
    return BufferedMessage(factories.delivery(QUEUE, handle=str(number)), {"number": number}, print)


@pytest.fixture
def buffer():
    buffer = Buffer()
    yield buffer
    buffer.close()


def lacks_memory(*_):
    raise MemoryError


def readable(buffer):
    return bool(select.select([buffer.fileno()], [], [], 0)[0])


def test_messages_come_out_in_order(buffer):
    messages = [buffered(number) for number in range(5)]
    buffer.put(messages[:2])
    buffer.put(messages[2:])
    assert len(buffer) == 5
    assert [buffer.get() for _ in range(6)] == [*messages, None]


def test_wanted_messages_are_taken_out_and_the_rest_keeps_its_order(buffer):
    first, second, third = messages = [buffered(1), buffered(2), buffered(3)]
    buffer.put(messages)
    assert buffer.take(lambda one: one is second) == [second]
    assert [buffer.get() for _ in range(3)] == [first, third, None]


@pytest.mark.parametrize("loop_came_first", [False, True])
def test_an_arrival_wakes_an_event_loop_and_nothing_does_not(buffer, loop_came_first):
    if loop_came_first:
        assert not readable(buffer)
        buffer.put([])
        assert not readable(buffer)
    buffer.put([buffered(1)])
    assert readable(buffer)
    assert buffer.fileno() == buffer.fileno()


def test_many_arrivals_are_one_wake_up_and_a_reader_that_stops_early_wakes_itself(buffer):
    buffer.fileno()
    for number in range(1000):
        buffer.put([buffered(number)])
    buffer.woken()
    assert not readable(buffer)
    assert len(buffer) == 1000
    buffer.get()
    buffer._wake()
    assert readable(buffer)
    buffer.woken()
    buffer.put([buffered(2)])
    assert readable(buffer)


def test_after_a_wake_up_that_memory_lacked_for_the_next_arrival_wakes_the_loop(buffer, monkeypatch):
    buffer.fileno()
    with monkeypatch.context() as memory:
        memory.setattr(os, "write", lacks_memory)
        with pytest.raises(MemoryError):
            buffer.put([buffered(1)])
    buffer.put([buffered(2)])
    assert readable(buffer)


def test_a_wake_up_without_a_loop_is_harmless(buffer):
    buffer._wake()
    buffer.woken()
    buffer.put([buffered(1)])


def test_it_can_be_closed_twice_and_used_again(buffer):
    buffer.fileno()
    buffer.put([buffered(1)])
    buffer.close()
    buffer.close()
    buffer.put([buffered(2)])
    assert readable(buffer)
    assert len(buffer) == 2


def test_a_reader_without_an_event_loop_waits_for_an_arrival(buffer):
    assert buffer.wait(0) is False
    with ThreadPoolExecutor(1) as executor:
        seen = executor.submit(buffer.wait, SOON)
        buffer.put([buffered(1)])
        assert seen.result(SOON) is True
    assert buffer.wait(None) is True


def test_a_reader_that_waits_hears_of_an_arrival_after_messages_of_a_queue_were_taken_out(buffer):
    with ThreadPoolExecutor(1) as executor:
        seen = executor.submit(buffer.wait, SOON)
        wait_until(lambda: buffer._arrived._waiters, SOON, "the reader to wait")
        buffer.take(lambda _: True)
        buffer.put([buffered(1)])
        assert seen.result(SOON) is True
        assert len(buffer) == 1


def test_a_callback_goes_first_one_at_a_time_and_wakes_the_reader(buffer):
    done = []
    buffer.fileno()
    buffer.put([buffered(1)])
    for number in range(2):
        buffer.put_callback(lambda number=number: done.append(number) or number == 0)
    assert readable(buffer)
    assert buffer.callbacks == 2
    assert buffer.run_callback()
    assert done == [0]
    assert not buffer.run_callback()  # it delivered nothing
    assert buffer.callbacks == 0
    assert not buffer.run_callback()
    assert done == [0, 1]
    assert buffer.get() is not None


def test_a_callback_that_raises_leaves_the_rest(buffer):
    buffer.put_callback(lambda: 1 / 0)
    buffer.put_callback(lambda: True)
    with pytest.raises(ZeroDivisionError):
        buffer.run_callback()
    assert buffer.wait(0)
    assert buffer.run_callback()
    assert not buffer.wait(0)
