"""The keys of runs are renewed with their messages, told lost, and released."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import FakeHolder, held_delivery

from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.events import Extended, Lost, emit
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired, Processing, Renewal
from celery_sqs_visibility.worker import key_leases as module
from celery_sqs_visibility.worker.key_leases import DueLeases, KeyLease, KeyLeases

KEY, OWNER = "task:key", "id/run"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def keys(store, clock, monkeypatch):
    """Without threads: `send_next` is theirs."""
    forget = []
    subscribe = module.subscribe
    monkeypatch.setattr(module, "subscribe", lambda *args: forget.append(subscribe(*args)))
    keys = KeyLeases(store, clock)
    monkeypatch.setattr(keys.lane, "start", lambda: None)
    keys.start()
    yield keys
    for unsubscribe in forget:
        unsubscribe()


@pytest.fixture
def run(keys, store, clock):
    """A run that has its key for ten seconds, and its message for a minute."""
    table = LeaseTable()
    holder = FakeHolder()
    holder.told = []
    holder.tell_lost = lambda delivery: holder.told.append(delivery) or True
    delivery = held_delivery(holder)
    delivery.deadline = clock.monotonic() + 60
    delivery.lease = table.take(delivery.deadline, lambda _until: None)
    made = SimpleNamespace(lease=KeyLease(KEY, OWNER, delivery), delivery=delivery, told=holder.told)
    keys.add(made.lease)
    store.acquire(KEY, OWNER, 10)
    delivery.lease.holds_key = True
    yield made
    for end in table._pipe:
        os.close(end)


def state(store):
    return store.acquire(KEY, "other", 5)


def extended(run):
    emit(Extended(run.delivery.facts, 60))


def test_a_key_is_renewed_until_its_message_is_visible_when_that_is_extended(keys, run, store):
    extended(run)
    assert keys.lane.send_next()
    assert state(store) == Processing(60, OWNER)
    assert not keys.lane.send_next()


def test_a_key_whose_message_is_not_extended_is_renewed_before_that_is_lost(keys, run, store, clock):
    store.renew([Renewal(KEY, OWNER, 60)])
    clock.advance(60 - run.lease.margin - 0.1)
    assert not keys.lane.send_next()
    clock.advance(0.1)
    assert keys.lane.send_next()
    clock.advance(run.lease.margin)
    assert state(store) == Processing(120 - run.lease.margin, OWNER)


def test_a_key_that_is_not_acquired_yet_is_not_renewed(keys, run):
    run.delivery.lease.holds_key = False
    extended(run)
    assert not keys.lane.send_next()


def test_the_key_of_a_run_that_goes_on_without_its_message_is_renewed_again_and_again(
    keys, run, store, clock
):
    run.delivery.lost = True
    emit(Lost(run.delivery.facts, "12 hours"))
    for _ in range(3):
        assert keys.lane.send_next()
        assert state(store) == Processing(120, OWNER)
        clock.advance(60)
    run.delivery.lease.end()
    run.delivery.lease = None
    keys.lane.send_next()
    clock.advance(121)
    assert isinstance(state(store), Acquired)


def test_a_run_whose_key_is_anothers_is_told_once(keys, run, store, clock, caplog):
    clock.advance(11)
    store.acquire(KEY, "thief", 60)
    for _ in range(2):
        extended(run)
        keys.lane.send_next()
    assert run.told == [run.delivery]
    assert caplog.text.count(f"the key {KEY!r} was lost") == 1


def test_a_run_that_ends_while_its_key_is_renewed_is_told_nothing(keys, run, store, monkeypatch):
    def renew(renewals):
        run.delivery.lease.holds_key = False
        return [False for _ in renewals]

    monkeypatch.setattr(store, "renew", renew)
    extended(run)
    keys.lane.send_next()
    assert run.told == []


def test_a_renewal_that_fails_is_tried_again(keys, run, store, clock, monkeypatch, caplog):
    def fail(_renewals):
        raise StoreError("it is down")

    with monkeypatch.context() as patch:
        patch.setattr(store, "renew", fail)
        extended(run)
        keys.lane.send_next()
    assert "cannot renew the keys of exclusive tasks: it is down" in caplog.text
    assert not keys.lane.send_next()
    clock.advance(1)
    assert keys.lane.send_next()
    assert state(store) == Processing(59, OWNER)


def test_the_key_of_a_run_that_was_killed_is_released_after_a_moment(keys, run, store, clock):
    keys.release(run.lease, 0.5)
    assert not keys.lane.send_next()
    clock.advance(0.5)
    assert keys.lane.send_next()
    assert isinstance(state(store), Acquired)
    extended(run)
    assert not keys.lane.send_next()


def test_a_shutdown_waits_until_the_keys_of_its_orphans_are_released(keys, run, store):
    with keys.lane.lock:
        assert keys.lane.has_thread()  # as a worker's has
    keys.release_all()
    assert isinstance(state(store), Acquired)
    keys.lane.stop()


def test_a_request_that_is_gone_is_forgotten(keys, run):
    run.lease = None
    extended(run)
    assert not keys.lane.send_next()


def leases(many):
    return [KeyLease(str(number), OWNER, None) for number in range(many)]


def test_leases_fall_due_in_their_order_ten_at_a_time():
    due, made = DueLeases(), leases(12)
    for at, lease in enumerate(reversed(made)):
        due.put(lease, at)
    assert due.first() == 0
    assert due.take(5) == made[:5:-1]
    assert due.take(20) == made[5::-1]
    assert due.first() is None
    assert len(due) == 0


def test_a_lease_that_falls_due_at_another_time_falls_due_once():
    due, (lease, other) = DueLeases(), leases(2)
    for at in (1, 3, 2, 2):
        due.put(lease, at)
    due.put(other, 4)
    assert due.take(1) == []
    assert due.first() == due.get(lease, 0) == 2
    assert due.take(3) == [lease]
    assert due.first() == 4


def test_of_leases_that_are_gone_or_fall_due_at_other_times_little_is_kept():
    due, (lease, *gone) = DueLeases(), leases(1000)
    for each in gone:
        due.put(each, 0)
    del gone, each
    assert due.first() is None
    for at in range(1000):
        due.put(lease, at)
    assert len(due._heap) < 20
    assert due.take(1000) == [lease]
