"""Keys in DynamoDB, by the clock of who asks."""

from __future__ import annotations

import pytest
from support.exclusive_stores import create_table

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.stores.dynamodb import DynamoDBStore
from celery_sqs_visibility.stores.port import Acquired, Processed, Processing, Renewal


@pytest.fixture
def store(clock, emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", emulator.url)
    return DynamoDBStore(
        create_table(), ClientSettings("us-east-1", access_key_id="key", secret_access_key="secret"), clock
    )


def test_a_key_is_free_at_the_end_of_its_lease_by_the_clock_of_who_asks(store, clock, key):
    store.acquire(key, "one", 60)
    clock.advance(59)
    assert store.acquire(key, "two", 60) == Processing(1, "one")
    store.renew([Renewal(key, "one", 60)])
    clock.advance(59)
    assert store.acquire(key, "two", 60) == Processing(1, "one")
    clock.advance(1)
    assert store.acquire(key, "two", 60) == Acquired()


def test_a_processed_key_is_free_at_the_end_of_its_time_to_live(store, clock, key):
    store.acquire(key, "one", 60)
    store.finish(key, "one", 100)
    clock.advance(99)
    assert store.acquire(key, "two", 60) == Processed()
    clock.advance(1)
    assert store.acquire(key, "two", 60) == Acquired()


def test_a_message_whose_answer_was_lost_has_had_the_attempts_that_it_says(store, key):
    acquired = store.acquire(key, "m1/one", 60, 3)
    store.release(key, "m1/one")
    assert (acquired.retries, acquired.runs) == (3, 0)
    other = store.acquire(key, "m2/one", 60, 5)
    assert (other.retries, other.runs) == (5, 0)
    store.release(key, "m2/one")
    again = store.acquire(key, "m2/two", 60, 9)
    assert (again.retries, again.runs) == (6, 1)
