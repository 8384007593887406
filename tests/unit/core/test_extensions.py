"""Deliveries share extensions by falling due in buckets, and by filling up each other's batches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import factories

from celery_sqs_visibility.core import extensions as module
from celery_sqs_visibility.core.extensions import (
    BUCKETS,
    Bucket,
    ExtensionSchedule,
    extension_seconds,
    seconds_apart,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

INTERVAL = 40.0
BUCKET_SECONDS = INTERVAL / BUCKETS
QUEUES = [factories.sqs_queue(name) for name in "ab"]


def filled(instants, interval=INTERVAL):
    extensions = ExtensionSchedule()
    deliveries = [factories.delivery(QUEUES[0]) for _ in instants]
    for one, at in zip(deliveries, instants, strict=True):
        extensions.add([one], at, interval)
    return extensions, deliveries


def all_due(extensions, now):
    """The batches that are due, one after the other."""
    return list(iter(lambda: extensions.take_due(now), []))


@given(st.floats(0, 1e6), st.floats(0.1, 14400))
def test_a_delivery_is_due_at_its_instant_or_up_to_a_bucket_earlier(at, interval):
    extensions, _ = filled([at], interval)
    grain = interval / BUCKETS
    due = extensions.next_due()
    assert due <= at or due == pytest.approx(at)
    assert due > at - grain or due == pytest.approx(at - grain)
    assert extensions.take_due(due)


@given(st.lists(st.floats(1000, 1200), min_size=1), st.floats(1000, 1200))
def test_nothing_is_taken_later_than_it_should(instants, now):
    extensions, deliveries = filled(instants)
    taken = [one for batch in all_due(extensions, now) for one in batch]
    left = [one for one in deliveries if one not in taken]
    assert all(at > now for one, at in zip(deliveries, instants, strict=True) if one in left)
    assert all(one.bucket is None for one in taken)
    assert all(one.bucket is not None for one in left)


@given(
    st.lists(st.tuples(st.sampled_from(QUEUES), st.floats(1000, 1200)), max_size=60), st.floats(1000, 1200)
)
def test_batches_are_full_as_long_as_there_is_anything_to_fill_them_with(entries, now):
    extensions = ExtensionSchedule()
    deliveries = [(factories.delivery(queue), at) for queue, at in entries]
    for one, at in deliveries:
        extensions.add([one], at, INTERVAL)
    expected = extensions.batches_due(now)
    batches = all_due(extensions, now)
    assert len(batches) <= expected, "what falls due later may have filled a batch up, and is due no more"
    for batch in batches:
        (queue,) = {one.queue for one in batch}
        left = [one for one, _ in deliveries if one.queue is queue and one.bucket is not None]
        last = all(one.queue is not queue for later in batches[batches.index(batch) + 1 :] for one in later)
        assert len(batch) == BATCH_ENTRIES or (last and not left)


def test_a_batch_is_filled_with_the_earliest_of_the_later_ones():
    extensions, deliveries = filled([1001, *range(1020, 1220, 10)])
    assert extensions.take_due(1005) == deliveries[:BATCH_ENTRIES]


def test_what_is_due_stays_until_the_batch_that_extends_it_is_taken():
    extensions, deliveries = filled([1001] * 25)
    assert [extensions.batches_due(now) for now in (999, 1000)] == [0, 3]
    assert len(extensions.take_due(1005)) == BATCH_ENTRIES
    assert sum(one.bucket is not None for one in deliveries) == 15
    for one in deliveries:
        extensions.remove(one)
    assert extensions.take_due(1005) == []


def test_what_is_put_twice_is_due_once():
    extensions, (one,) = filled([1001])
    extensions.add_not_before([one], 1100)
    assert extensions.take_due(1050) == []
    assert all_due(extensions, 1101) == [[one]]


def test_what_was_removed_is_not_taken_and_removing_twice_or_what_was_never_there_is_harmless():
    extensions, (one, other) = filled([1001, 1001])
    for removed in (one, one, factories.delivery(QUEUES[0])):
        extensions.remove(removed)
    assert all_due(extensions, 1005) == [[other]]
    assert extensions.next_due() is None
    assert extensions.batches_due(1e9) == 0
    assert extensions.take_due(1e9) == []


def test_the_next_due_is_the_earliest_bucket_of_all():
    extensions, _ = filled([1095, 1017, 1050])
    assert extensions.next_due() == math.floor(1017 / BUCKET_SECONDS) * BUCKET_SECONDS


@pytest.mark.parametrize(
    ("interval", "left", "seconds"),
    [(INTERVAL, 119.9, 120), (INTERVAL, 120, 0), (0, 0.5, 0), (INTERVAL, 0, 0)],
    ids=["longer", "not longer", "without a heartbeat", "lapsed"],
)
def test_what_is_extended_is_hidden_for_longer_afterwards(interval, left, seconds):
    one = factories.delivery(QUEUES[0], now=1000)
    one.deadline = 1000 + left
    assert extension_seconds(one, factories.every_queue(120, interval)("q"), 1000) == seconds


@pytest.mark.parametrize(("interval", "apart"), [(40, 40), (95, 25), (0, 120)])
def test_extensions_are_as_far_apart_as_the_heartbeat_leaves_them(interval, apart):
    assert seconds_apart(factories.every_queue(120, interval)("q")) == apart


def test_what_memory_lacked_for_can_be_taken_out(monkeypatch):
    class Small(Bucket):
        def __setitem__(self, delivery, _none):
            if self:
                raise MemoryError
            super().__setitem__(delivery, None)

    extensions = ExtensionSchedule()
    other, first, second = (factories.delivery(queue) for queue in (QUEUES[1], QUEUES[0], QUEUES[0]))
    extensions.add([other], 1000, INTERVAL)
    monkeypatch.setattr(module, "Bucket", Small)
    with pytest.raises(MemoryError):
        extensions.add([first, second], 1000, INTERVAL)
    extensions.remove(first)
    assert all_due(extensions, 1000) == [[other]]
