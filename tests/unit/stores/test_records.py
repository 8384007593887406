"""Records of keys expire by themselves, when SQS can have no message of theirs any more, and not before."""

from __future__ import annotations

import boto3
import pytest
from support.exclusive_stores import create_table
from support.redis_server import RedisServer

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.stores.dynamodb import DynamoDBStore
from celery_sqs_visibility.stores.port import RECORD_SECONDS, Acquired, Processed, Processing, Renewal
from celery_sqs_visibility.stores.redis import PREFIX, RedisStore

WHILE_THE_TEST_RUNS = 100  # seconds
SETTINGS = ClientSettings("us-east-1", access_key_id="key", secret_access_key="secret")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


class InRedis:
    """Keys, and for how many seconds their records are kept."""

    def __init__(self, server):
        self.store = RedisStore(server.url)

    def left(self, key):
        return self.store._redis.pttl(PREFIX + key) / 1000

    def shorten(self, key):
        self.store._redis.expire(PREFIX + key, 10)

    def close(self):
        self.store._redis.close()


class InDynamoDB:
    """The same. Only the table's own time to live removes them."""

    def __init__(self, clock):
        self._clock = clock
        self._table = create_table()
        self._client = boto3.client("dynamodb")
        self.store = DynamoDBStore(self._table, SETTINGS, clock)

    def left(self, key):
        item = self._client.get_item(TableName=self._table, Key={"key": {"S": key}})["Item"]
        return float(item["expires"]["N"]) - self._clock.wall()

    def shorten(self, key):
        self._clock.advance(1000)

    def close(self):
        self._client.close()


@pytest.fixture(params=["redis", "dynamodb"])
def keys(request, clock, monkeypatch):
    if request.param == "redis":
        keys = InRedis(request.getfixturevalue("server"))
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", request.getfixturevalue("emulator").url)
        keys = InDynamoDB(clock)
    yield keys
    keys.close()


def about(seconds):
    return pytest.approx(seconds, abs=WHILE_THE_TEST_RUNS)


def test_the_record_of_a_lease_is_kept_for_as_long_as_sqs_may_keep_its_message_after_that(keys, key):
    keys.store.acquire(key, "one", 3600)
    assert keys.left(key) == about(3600 + RECORD_SECONDS)


def test_the_record_of_a_claim_is_kept_for_its_time_and_no_longer(keys, key):
    """Beat makes one for each task that it sends."""
    assert keys.store.claim(key, 3600)
    assert keys.left(key) == about(3600)


def test_a_renewal_keeps_the_record_for_longer(keys, key):
    keys.store.acquire(key, "one", 60)
    keys.shorten(key)
    assert keys.store.renew([Renewal(key, "one", 3600)]) == [True]
    assert keys.left(key) == about(3600 + RECORD_SECONDS)


def test_the_record_of_a_processed_key_is_kept_for_its_time_to_live(keys, key):
    keys.store.acquire(key, "one", 60)
    assert keys.store.finish(key, "one", 7200)
    assert keys.left(key) == about(7200)


@pytest.mark.parametrize("change", ["release", "save"])
def test_a_key_that_is_released_or_saves_a_checkpoint_is_kept_as_long_as_before(keys, key, change):
    keys.store.acquire(key, "one", 3600)
    before = keys.left(key)
    assert keys.store.release(key, "one") if change == "release" else keys.store.save(key, "one", 1)
    assert keys.left(key) == pytest.approx(before, abs=WHILE_THE_TEST_RUNS)


@pytest.fixture
def table(clock, emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", emulator.url)
    return DynamoDBStore(create_table(), SETTINGS, clock)


def test_in_dynamodb_a_key_is_free_at_the_end_of_its_lease_by_the_clock_of_who_asks(table, clock, key):
    table.acquire(key, "one", 60)
    clock.advance(59)
    assert table.acquire(key, "two", 60) == Processing(1, "one")
    table.renew([Renewal(key, "one", 60)])
    clock.advance(59)
    assert table.acquire(key, "two", 60) == Processing(1, "one")
    clock.advance(1)
    assert table.acquire(key, "two", 60) == Acquired()


def test_in_dynamodb_a_processed_key_is_free_at_the_end_of_its_time_to_live(table, clock, key):
    table.acquire(key, "one", 60)
    table.finish(key, "one", 100)
    clock.advance(99)
    assert table.acquire(key, "two", 60) == Processed()
    clock.advance(1)
    assert table.acquire(key, "two", 60) == Acquired()


def test_in_dynamodb_a_message_whose_answer_was_lost_has_had_the_attempts_that_it_says(table, key):
    acquired = table.acquire(key, "m1/one", 60, 3)
    table.release(key, "m1/one")
    assert (acquired.retries, acquired.runs) == (3, 0)
    other = table.acquire(key, "m2/one", 60, 5)
    assert (other.retries, other.runs) == (5, 0)
    table.release(key, "m2/one")
    again = table.acquire(key, "m2/two", 60, 9)
    assert (again.retries, again.runs) == (6, 1)
