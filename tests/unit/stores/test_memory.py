"""A key in memory is free, taken or processed to the second, on a clock that tests turn."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired, Processed, Processing, Renewal

KEY = "key"


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


def test_a_lease_lasts_its_seconds_and_tells_how_many_are_left(store, clock):
    assert store.acquire(KEY, "one", 60) == Acquired()
    clock.advance(59)
    assert store.acquire(KEY, "two", 60) == Processing(1, "one")
    clock.advance(1)
    assert store.acquire(KEY, "two", 60) == Acquired()
    assert store.acquire(KEY, "one", 60) == Processing(60, "two")


def test_a_renewal_counts_from_when_it_is_made(store, clock):
    store.acquire(KEY, "one", 60)
    clock.advance(50)
    assert store.renew([Renewal(KEY, "one", 60)]) == [True]
    clock.advance(59)
    assert store.acquire(KEY, "two", 60) == Processing(1, "one")


def test_its_owner_may_acquire_it_again_which_prolongs_the_lease(store, clock):
    store.acquire(KEY, "one", 60)
    clock.advance(30)
    assert store.acquire(KEY, "one", 60) == Acquired()
    assert store.acquire(KEY, "two", 60) == Processing(60, "one")


def test_a_processed_key_is_free_when_its_time_to_live_is_over(store, clock):
    store.acquire(KEY, "one", 60)
    assert store.finish(KEY, "one", 100)
    clock.advance(99.9)
    assert store.acquire(KEY, "two", 60) == Processed()
    clock.advance(0.1)
    assert store.acquire(KEY, "two", 60) == Acquired()


def test_a_processed_key_is_its_owners_for_a_second_finish(store, clock):
    store.acquire(KEY, "one", 60)
    store.finish(KEY, "one", 100)
    clock.advance(50)
    assert store.finish(KEY, "one", 100)
    clock.advance(99)
    assert store.acquire(KEY, "two", 60) == Processed()


def test_a_finish_without_a_time_to_live_frees_the_key(store):
    store.acquire(KEY, "one", 60)
    assert store.finish(KEY, "one", 0)
    assert store.acquire(KEY, "two", 60) == Acquired()


@pytest.mark.parametrize("change", ["finish", "release", "save"])
def test_a_key_that_nobody_has_acquired_is_changed_by_nobody(store, change):
    arguments = {"finish": [KEY, "one", 60], "release": [KEY, "one"], "save": [KEY, "one", 1]}
    assert getattr(store, change)(*arguments[change]) is False
    assert store.acquire(KEY, "two", 60) == Acquired()


def test_a_lease_that_has_lapsed_is_its_owners_until_another_takes_the_key(store, clock):
    store.acquire(KEY, "one", 60)
    clock.advance(61)
    assert store.save(KEY, "one", "late")
    assert store.acquire(KEY, "two", 60) == Acquired("late")
    assert not store.save(KEY, "one", "later")


def test_a_claim_without_a_name_is_nobody_elses(store, clock):
    assert store.claim(KEY, 10)
    assert not store.claim(KEY, 10)
    clock.advance(10)
    assert store.claim(KEY, 10)


def test_a_claim_with_a_name_is_released_by_it_alone(store):
    assert store.claim(KEY, 10, "one")
    assert store.claim(KEY, 10, "one"), "the first answer may have been lost"
    assert not store.claim(KEY, 10, "two")
    assert not store.release(KEY, "two")
    assert store.release(KEY, "one")
    assert store.claim(KEY, 10, "two")


def test_a_store_without_a_breaker_is_always_asked(store):
    store.unanswered("no answer", 0.0)
    assert store.error == ""
    store.answered(0.0)
    assert store.error == ""


def test_a_run_whose_first_answer_was_lost_is_counted_once(store):
    for _ in range(2):
        acquired = store.acquire(KEY, "m1/one", 60, 3)
        assert (acquired.retries, acquired.runs) == (3, 0)
    store.release(KEY, "m1/one")
    acquired = store.acquire(KEY, "m1/two", 60, 9)
    assert (acquired.retries, acquired.runs) == (4, 1)
