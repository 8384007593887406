"""Releases of keys: a shutdown is woken when the last is done, and one that fails is left to its lease."""

import math
import threading
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import FakeHolder, held_delivery
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.events import Extended, Lost, Superseded, emit
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired, Processing, Renewal
from celery_sqs_visibility.worker import key_leases as module
from celery_sqs_visibility.worker.key_leases import (
    MARGIN_FRACTION,
    RETRY_FLOOR_SECONDS,
    RETRY_FRACTION,
    DueLeases,
    KeyBatch,
    KeyLease,
    KeyLeases,
)

OWNER = "id/run"


class World:
    """Runs that have their keys for ten seconds, and their messages for a minute; no threads."""

    def __init__(self, monkeypatch, table):
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.forget = []
        subscribe = module.subscribe
        monkeypatch.setattr(module, "subscribe", lambda *args: self.forget.append(subscribe(*args)))
        self.keys = KeyLeases(self.store, Pump(self.clock))
        self.starts = []
        monkeypatch.setattr(self.keys.lane, "start", lambda: self.starts.append(1))
        self.keys.start()
        self.table = table
        self.told = []
        self.leases = []

    def begin(self, key="key", *, holds=True, **options):
        holder = FakeHolder(**options)
        holder.tell_lost = lambda delivery: self.told.append(delivery) or True
        delivery = held_delivery(holder, message_id=f"message of {key}")
        delivery.deadline = self.clock.monotonic() + 60
        delivery.lease = self.table.take(delivery.deadline, lambda _until: None)
        lease = KeyLease(key, OWNER, delivery)
        lease.until = self.clock.monotonic() + 10
        self.keys.add(lease)
        self.leases.append(lease)
        self.store.acquire(key, OWNER, 10)
        delivery.lease.holds_key = holds
        return lease

    def work(self):
        count = 0
        while self.keys.lane.send_next():
            count += 1
        return count

    def is_free(self, key="key"):
        return isinstance(self.store.acquire(key, "other", 5), Acquired)

    def fail(self, monkeypatch, name):
        def fail(*_):
            raise StoreError("it is down")

        monkeypatch.setattr(self.store, name, fail)


@pytest.fixture
def world(monkeypatch, leases):
    world = World(monkeypatch, leases)
    yield world
    for unsubscribe in world.forget:
        unsubscribe()


def test_the_threads_are_started_and_follow_the_events_of_messages(world):
    assert world.starts == [1]
    assert len(world.forget) == 3


def test_a_shutdown_is_woken_when_the_keys_of_its_runs_are_released(world, monkeypatch):
    monkeypatch.setattr(module, "RELEASE_SECONDS", 3600.0)
    monkeypatch.setattr(world.keys.lane, "wake", lambda: None)
    for key in ("one", "two"):
        world.begin(key)
    shutdown = threading.Thread(target=world.keys.release_all, daemon=True)
    shutdown.start()
    wait_until(lambda: world.keys.lane._pump.waiting, SOON, "the shutdown to wait")
    assert world.keys.lane.send_next()
    shutdown.join(SOON)
    assert not shutdown.is_alive()
    assert world.is_free("one")
    assert world.is_free("two")


def test_a_shutdown_without_keys_waits_for_nothing(world, monkeypatch):
    monkeypatch.setattr(module, "RELEASE_SECONDS", 3600.0)
    world.begin("waits", holds=False)
    world.keys.release_all()
    assert world.keys._releasing == set()


def test_a_shutdown_does_not_wait_longer_than_it_may(world, monkeypatch):
    monkeypatch.setattr(module, "RELEASE_SECONDS", 0.01)
    monkeypatch.setattr(world.keys.lane, "wake", lambda: None)
    world.begin()
    shutdown = threading.Thread(target=world.keys.release_all, daemon=True)
    shutdown.start()
    shutdown.join(SOON)
    assert not shutdown.is_alive()
    assert not world.is_free()


def test_a_release_that_fails_is_not_repeated_and_the_lease_lapses(world, monkeypatch):
    lease = world.begin()
    world.fail(monkeypatch, "release")
    world.keys.release(lease)
    assert world.work() == 1
    assert world.keys._releasing == set()
    world.clock.advance(3600)
    assert world.work() == 0


def test_a_key_that_is_released_is_renewed_no_more_and_nobody_is_told_that_it_is_lost(world):
    lease = world.begin()
    world.keys.release(lease)
    assert (lease.over, lease.held) == (True, False)
    world.work()
    emit(Extended(lease.delivery.facts, 60))
    assert world.work() == 0
    assert (world.is_free(), world.told) == (True, [])


def test_a_failed_renewal_is_tried_again_after_a_part_of_the_time_that_is_left(world, monkeypatch):
    lease = world.begin()
    lease.until = world.clock.monotonic() + 60
    with monkeypatch.context() as patch:
        world.fail(patch, "renew")
        emit(Extended(lease.delivery.facts, 60))
        assert world.work() == 1
    due = world.keys.due(0.0)
    assert due == world.clock.monotonic() + 60 / RETRY_FRACTION
    world.clock.advance(60 / RETRY_FRACTION)
    assert world.work() == 1
    assert world.store.acquire("key", "other", 5) == Processing(45, OWNER)


def test_a_failed_renewal_of_a_lease_that_is_nearly_over_is_tried_again_after_a_moment(world, monkeypatch):
    lease = world.begin()
    lease.until = world.clock.monotonic() + 1
    world.fail(monkeypatch, "renew")
    emit(Extended(lease.delivery.facts, 60))
    world.work()
    assert world.keys.due(0.0) == world.clock.monotonic() + RETRY_FLOOR_SECONDS


def test_a_failed_renewal_is_told_once_and_its_end_too(world, monkeypatch, caplog):
    lease = world.begin()
    lease.until = world.clock.monotonic() + 60
    with monkeypatch.context() as patch:
        world.fail(patch, "renew")
        emit(Extended(lease.delivery.facts, 60))
        world.work()
    world.clock.advance(15)
    world.work()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_message_that_comes_back_while_it_is_held_has_its_key_renewed_with_it(world):
    lease = world.begin()
    emit(Superseded(lease.delivery.facts))
    assert world.work() == 1
    assert world.store.acquire("key", "other", 5) == Processing(60, OWNER)


def test_an_event_of_another_message_renews_nothing(world):
    lease = world.begin()
    world.begin("another")
    facts = lease.delivery.facts
    for queue, message_id in (("other", facts.message_id), (facts.queue, "another message")):
        emit(Extended(type(facts)(queue, message_id, 1, 0.0), 60))
    assert world.work() == 0


def test_a_key_that_is_not_acquired_yet_is_looked_at_again_before_its_message_is_lost(world):
    lease = world.begin(holds=False)
    emit(Extended(lease.delivery.facts, 60))
    assert world.keys.due(0.0) == lease.delivery.deadline - lease.margin


def test_a_renewed_key_is_due_again_before_its_own_end(world):
    lease = world.begin()
    emit(Extended(lease.delivery.facts, 60))
    world.work()
    assert lease.until == lease.delivery.deadline
    assert world.keys.due(0.0) == lease.until - lease.margin


def test_ten_keys_share_a_request_and_each_more_takes_another(world):
    assert world.keys.ready() == 0
    for number in range(10):
        world.begin(str(number))
    assert world.keys.ready() == 1
    world.begin("eleventh")
    assert world.keys.ready() == 2
    assert world.keys.take(world.clock.monotonic()) is None
    batch = world.keys.take(math.inf)
    assert len(batch) == len(KeyBatch(world.leases[:10])) == 10


@pytest.mark.parametrize(
    ("options", "margin"),
    [
        ({"visibility_timeout": 120, "heartbeat_interval": 60}, 120 / MARGIN_FRACTION),
        ({"visibility_timeout": 120, "heartbeat_interval": 10}, 5),
        ({"visibility_timeout": 600, "heartbeat_interval": 0}, 100),
    ],
)
def test_a_key_is_renewed_when_the_heartbeat_has_tried_and_before_its_message_is_lost(world, options, margin):
    lease = world.begin()
    lease.delivery.holder.options = SimpleNamespace(for_queue=lambda _name: SimpleNamespace(**options))
    assert lease.margin == margin


def test_a_key_lasts_as_long_as_its_message_and_longer_where_that_is_nearly_over(world):
    lease = world.begin(visibility_timeout=120)
    now = lease.delivery.deadline
    assert lease.next_end(now - lease.margin - 1) == lease.delivery.deadline
    assert lease.next_end(now - lease.margin) == now - lease.margin + 120
    lease.delivery.lost = True
    assert lease.next_end(now - 50) == now + 70


def test_a_store_that_does_not_answer_for_each_key_is_no_store(world, monkeypatch):
    lease = world.begin()
    monkeypatch.setattr(world.store, "renew", lambda _renewals: [])
    with pytest.raises(ValueError, match="shorter"):
        world.keys.send(KeyBatch([lease]), 0.0)


def test_a_key_whose_message_is_not_extended_is_renewed_before_that_is_lost(world):
    lease = world.begin()
    world.store.renew([Renewal("key", OWNER, 60)])
    world.clock.advance(60 - lease.margin - 0.1)
    assert world.work() == 0
    world.clock.advance(0.1)
    assert world.work() == 1
    world.clock.advance(lease.margin)
    assert world.store.acquire("key", "other", 5) == Processing(120 - lease.margin, OWNER)


def test_the_key_of_a_run_that_goes_on_without_its_message_is_renewed_again_and_again(world):
    lease = world.begin(visibility_timeout=120)
    lease.delivery.lost = True
    emit(Lost(lease.delivery.facts, "12 hours"))
    for _ in range(3):
        assert world.work() == 1
        assert world.store.acquire("key", "other", 5) == Processing(120, OWNER)
        world.clock.advance(60)
    lease.delivery.lease.end()
    lease.delivery.lease = None
    world.work()
    world.clock.advance(121)
    assert world.is_free()


def test_a_run_whose_key_is_anothers_is_told_once(world, caplog):
    lease = world.begin()
    world.clock.advance(11)
    world.store.acquire("key", "thief", 60)
    for _ in range(2):
        emit(Extended(lease.delivery.facts, 60))
        world.work()
    assert world.told == [lease.delivery]
    assert caplog.text.count("the key 'key' was lost") == 1


def test_a_run_that_ends_while_its_key_is_renewed_is_told_nothing(world, monkeypatch):
    lease = world.begin()

    def renew(renewals):
        lease.delivery.lease.holds_key = False
        return [False for _ in renewals]

    monkeypatch.setattr(world.store, "renew", renew)
    emit(Extended(lease.delivery.facts, 60))
    world.work()
    assert world.told == []


def test_the_key_of_a_run_that_was_killed_is_released_after_a_moment(world):
    lease = world.begin()
    world.keys.release(lease, 0.5)
    assert world.work() == 0
    world.clock.advance(0.5)
    assert world.work() == 1
    assert world.is_free()


def test_a_request_that_is_gone_is_forgotten(world):
    facts = world.begin().delivery.facts
    world.leases.clear()
    emit(Extended(facts, 60))
    assert world.work() == 0


def leases_of_nobody(many):
    return [KeyLease(str(number), OWNER, None) for number in range(many)]


def test_leases_fall_due_in_their_order_ten_at_a_time():
    due, made = DueLeases(), leases_of_nobody(12)
    for at, lease in enumerate(reversed(made)):
        due.put(lease, at)
    assert due.first() == 0
    assert due.take(5) == made[:5:-1]
    assert due.take(20) == made[5::-1]
    assert due.first() is None
    assert len(due) == 0


def test_a_lease_that_falls_due_at_another_time_falls_due_once():
    due, (lease, other) = DueLeases(), leases_of_nobody(2)
    for at in (1, 3, 2, 2):
        due.put(lease, at)
    due.put(other, 4)
    assert due.take(1) == []
    assert due.first() == due.get(lease, 0) == 2
    assert due.take(3) == [lease]
    assert due.first() == 4


def test_of_leases_that_are_gone_or_fall_due_at_other_times_little_is_kept():
    due, (lease, *gone) = DueLeases(), leases_of_nobody(1000)
    for each in gone:
        due.put(each, 0)
    del gone, each
    assert due.first() is None
    for at in range(1000):
        due.put(lease, at)
    assert len(due._heap) < 20
    assert due.take(1000) == [lease]
