"""Contacts with a worker: what stands before its connection, and what gives its requests to the pool."""

from types import SimpleNamespace

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_sqs_visibility.contacts.worker import call_due_timers, connecting, replace_task_handover


def test_all_that_stands_before_a_connection_is_called_in_order_and_all_after_it_see_it():
    calls = []
    consumer = SimpleNamespace(connect=lambda: calls.append("connect") or "the connection")
    connecting(consumer).before.append(lambda: calls.append("wait"))
    connecting(consumer).before.insert(0, lambda: calls.append("first"))
    connecting(consumer).after.append(calls.append)
    for _ in range(2):  # a consumer may connect anew
        assert consumer.connect() == "the connection"
    assert calls == ["first", "wait", "connect", "the connection"] * 2


@pytest.mark.parametrize(("putlocks", "uses_semaphore", "waits"), [(1, 1, 1), (0, 1, 0), (1, 0, 0)])
def test_a_request_waits_for_a_slot_where_celery_lets_it_wait(putlocks, uses_semaphore, waits):
    handed_over = []
    consumer = SimpleNamespace(
        controller=SimpleNamespace(semaphore=LaxBoundedSemaphore(1), pool_putlocks=bool(putlocks)),
        pool=SimpleNamespace(uses_semaphore=bool(uses_semaphore)),
    )
    free_slot = replace_task_handover(consumer, handed_over.append)
    for request in ("first", "second"):
        consumer.on_task_request(request)
    assert handed_over == ["first", "second"][: 2 - waits]
    free_slot()
    assert handed_over == ["first", "second"]


def test_there_is_no_slot_to_wait_for_without_an_event_loop():
    handed_over = []
    consumer = SimpleNamespace(
        controller=SimpleNamespace(semaphore=None, pool_putlocks=True),
        pool=SimpleNamespace(uses_semaphore=True),
    )
    replace_task_handover(consumer, handed_over.append)()
    consumer.on_task_request("a request")
    assert handed_over == ["a request"]


def test_an_event_loop_does_not_sleep_while_timers_are_due():
    hub, called = Hub(), []
    for _ in range(2):  # the worker may connect anew
        call_due_timers(hub)
    for _ in range(25):
        hub.timer.call_at(0, called.append, ("due",))
    hub.timer.call_after(3_000, called.append, ("later",))
    assert [hub.fire_timers(), hub.fire_timers()] == [0, 0]
    assert hub.fire_timers() > 1
    assert called == ["due"] * 25
    hub.close()
