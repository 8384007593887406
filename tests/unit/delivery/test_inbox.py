"""In order, to one reader, who is woken once however many parcels arrive."""

from __future__ import annotations

import select
import threading

import pytest
from support.processes import SOON

from celery_sqs_visibility.aws.memory import MemorySQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.events import Facts
from celery_sqs_visibility.delivery.inbox import Inbox, Parcel
from celery_sqs_visibility.delivery.model import Delivery

QUEUE = Queue("q", "memory://q", MemorySQS())


def parcel(number):
    delivery = Delivery(QUEUE, str(number), Facts("q", str(number), 1, 0), 0, 120, None)
    return Parcel(delivery, {"number": number}, print)


@pytest.fixture
def inbox():
    inbox = Inbox()
    yield inbox
    inbox.close()


def readable(inbox):
    return bool(select.select([inbox.fileno()], [], [], 0)[0])


def test_parcels_come_out_in_order(inbox):
    parcels = [parcel(number) for number in range(5)]
    inbox.put(parcels[:2])
    inbox.put(parcels[2:])
    assert len(inbox) == 5
    assert [inbox.get() for _ in range(6)] == [*parcels, None]


def test_what_is_wanted_back_is_taken_out_and_the_rest_keeps_its_order(inbox):
    first, second, third = parcels = [parcel(1), parcel(2), parcel(3)]
    inbox.put(parcels)
    assert inbox.take(lambda one: one is second) == [second]
    assert [inbox.get() for _ in range(3)] == [first, third, None]


def test_an_arrival_wakes_an_event_loop(inbox):
    assert not readable(inbox)
    inbox.put([parcel(1)])
    assert readable(inbox)


def test_nothing_wakes_nobody(inbox):
    assert not readable(inbox)
    inbox.put([])
    assert not readable(inbox)


def test_what_arrived_before_the_loop_came_wakes_it_too(inbox):
    inbox.put([parcel(1)])
    assert readable(inbox)


def test_a_loop_that_saw_the_wake_up_is_woken_anew_by_what_comes_next(inbox):
    inbox.fileno()
    inbox.put([parcel(1)])
    inbox.woken()
    assert not readable(inbox)
    inbox.put([parcel(2)])
    assert readable(inbox)


def test_many_arrivals_are_one_wake_up(inbox):
    inbox.fileno()
    for number in range(100_000 // 100):
        inbox.put([parcel(number)])
    inbox.woken()
    assert not readable(inbox)
    assert len(inbox) == 1000


def test_a_reader_that_stops_early_wakes_itself(inbox):
    inbox.fileno()
    inbox.put([parcel(1), parcel(2)])
    inbox.woken()
    inbox.get()
    inbox.wake()
    assert readable(inbox)


def test_a_wake_up_without_a_loop_is_harmless(inbox):
    inbox.wake()
    inbox.woken()
    inbox.put([parcel(1)])


def test_the_descriptor_stays_the_same(inbox):
    assert inbox.fileno() == inbox.fileno()


def test_it_can_be_closed_twice_and_used_again(inbox):
    inbox.fileno()
    inbox.put([parcel(1)])
    inbox.close()
    inbox.close()
    inbox.put([parcel(2)])
    assert readable(inbox)
    assert len(inbox) == 2


def test_waiting_for_nothing_ends_in_time(inbox):
    assert inbox.wait(0) is False


def test_waiting_for_what_is_there_does_not_wait(inbox):
    inbox.put([parcel(1)])
    assert inbox.wait(None) is True


def test_a_reader_without_an_event_loop_is_woken_by_an_arrival(inbox):
    seen = []
    reader = threading.Thread(target=lambda: seen.append(inbox.wait(SOON)), daemon=True)
    reader.start()
    inbox.put([parcel(1)])
    reader.join(SOON)
    assert seen == [True]
