"""What every store of exclusive keys must do: in memory, in Redis, and in DynamoDB, with moto behind it."""

import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
import redis
from support.clock import FakeClock
from support.exclusive_stores import HANGING_STORES, create_table
from support.redis_server import RedisServer

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.errors import StoreUnavailableError
from celery_sqs_visibility.policy.exclusive import store_address
from celery_sqs_visibility.stores.dynamodb import DynamoDBStore
from celery_sqs_visibility.stores.guarded import open_store
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import RECORD_SECONDS, Acquired, Processed, Processing, Renewal
from celery_sqs_visibility.stores.redis import PREFIX, RedisStore

BRIEF = 0.4
WHILE_THE_TEST_RUNS = 100  # seconds


SETTINGS = ClientSettings("us-east-1", access_key_id="key", secret_access_key="secret")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def redis_store(redis_server):
    return RedisStore(redis_server.url)


@pytest.fixture(scope="module")
def dynamodb_store(emulator):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", emulator.url)
        yield DynamoDBStore(create_table(), SETTINGS)


@pytest.fixture(params=["memory", "redis", "dynamodb"])
def store(request):
    return MemoryStore() if request.param == "memory" else request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def key():
    return f"tasks.work:Ä {uuid.uuid4().hex}"


def test_a_key_is_one_owners_at_a_time(store, key):
    assert store.acquire(key, "one", 3600) == Acquired(None)
    other = store.acquire(key, "two", 60)
    assert isinstance(other, Processing)
    assert other.owner == "one"
    assert 3600 - WHILE_THE_TEST_RUNS < other.seconds <= 3600
    assert store.acquire(f"{key}2", "two", 60) == Acquired(None)


def test_an_acquisition_whose_answer_was_lost_is_repeated(store, key):
    store.acquire(key, "one", 60)
    assert store.acquire(key, "one", 60) == Acquired(None)


def test_a_key_is_free_when_its_lease_lapses(store, key):
    store.acquire(key, "one", BRIEF)
    time.sleep(BRIEF)
    assert store.acquire(key, "two", 60) == Acquired(None)


def test_a_renewed_lease_lasts(store, key):
    store.acquire(key, "one", BRIEF)
    assert store.renew([Renewal(key, "one", 60)]) == [True]
    time.sleep(BRIEF)
    assert isinstance(store.acquire(key, "two", 60), Processing)


def test_a_lapsed_lease_is_renewed_if_nobody_has_taken_the_key(store, key):
    store.acquire(key, "one", 0.01)
    time.sleep(0.02)
    assert store.renew([Renewal(key, "one", 60)]) == [True]
    assert isinstance(store.acquire(key, "two", 60), Processing)


def test_a_record_that_the_store_has_lost_is_made_again_by_its_owner(store, key):
    assert store.renew([Renewal(key, "m1/one", 60)]) == [True]
    assert store.acquire(key, "m2/one", 60).owner == "m1/one"
    assert store.save(key, "m1/one", {"page": 7})
    assert store.release(key, "m1/one")
    assert store.renew([Renewal(key, "m1/one", 60)]) == [False], "a release is no loss"
    again = store.acquire(key, "m1/two", 60, 4)
    assert (again.checkpoint, again.retries) == ({"page": 7}, 4)


def test_an_owner_that_has_lost_its_key_changes_nothing(store, key):
    store.acquire(key, "one", 0.01)
    time.sleep(0.02)
    store.acquire(key, "two", 60)
    assert store.renew([Renewal(key, "one", 60), Renewal(key, "two", 60)]) == [False, True]
    assert not store.finish(key, "one", 60)
    assert not store.save(key, "one", "stale")
    assert not store.release(key, "one")
    assert store.acquire(key, "three", 60).owner == "two"
    assert store.release(key, "two")
    assert store.acquire(key, "three", 60) == Acquired(None)


def test_a_processed_key_is_processed_for_its_time_to_live(store, key):
    store.acquire(key, "one", 60)
    assert store.finish(key, "one", 60)
    assert store.acquire(key, "two", 60) == Processed()
    assert store.acquire(key, "one", 60) == Processed()
    assert store.finish(key, "one", BRIEF)  # once more, as where the answer was lost
    time.sleep(BRIEF)
    assert store.acquire(key, "two", 60) == Acquired(None)


def test_a_released_key_is_free_at_once_and_stays_so(store, key):
    store.acquire(key, "one", 60)
    assert store.release(key, "one")
    assert store.renew([Renewal(key, "one", 60)]) == [False]  # it was under way, and comes late
    assert not store.save(key, "one", "late")
    assert store.acquire(key, "two", 60) == Acquired(None)


@pytest.mark.parametrize("checkpoint", [0, "", {"page": [7, "ü"]}, False])
def test_the_next_owner_has_the_checkpoint_until_one_succeeds(store, key, checkpoint):
    store.acquire(key, "one", 60)
    assert store.save(key, "one", "older")
    assert store.save(key, "one", checkpoint)
    store.release(key, "one")
    assert store.acquire(key, "two", 60) == Acquired(checkpoint)
    store.finish(key, "two", 0.01)
    time.sleep(0.02)
    assert store.acquire(key, "three", 60) == Acquired(None)


def attempts(acquired):
    return acquired.retries, acquired.runs


def test_the_runs_of_a_message_are_counted_and_not_those_that_found_the_key_taken(store, key):
    assert attempts(store.acquire(key, "m1/one", 60, 2)) == (2, 0)
    assert attempts(store.acquire(key, "m1/one", 60, 2)) in [(2, 0), (3, 1)], "DynamoDB may count it twice"
    store.release(key, "m1/one")
    fresh = f"{key} fresh"
    assert attempts(store.acquire(fresh, "m1/one", 60, 2)) == (2, 0)
    for retries in range(3, 9):
        assert isinstance(store.acquire(fresh, "m1/waits", 60, retries), Processing)
    store.release(fresh, "m1/one")
    assert attempts(store.acquire(fresh, "m1/two", 0.01, 9)) == (3, 1)
    time.sleep(0.02)
    assert attempts(store.acquire(fresh, "m1/three", 60, 10)) == (4, 2)
    store.release(fresh, "m1/three")
    assert attempts(store.acquire(fresh, "m2/one", 60, 7)) == (7, 0), "another message's"
    store.release(fresh, "m2/one")
    assert attempts(store.acquire(fresh, "m2/two", 60, 8)) == (8, 1)
    store.release(fresh, "m2/two")
    assert attempts(store.acquire(fresh, "m1/four", 60, 11)) == (11, 0)
    store.finish(fresh, "m1/four", 0.01)
    time.sleep(0.02)
    assert attempts(store.acquire(fresh, "m1/five", 60, 0)) == (0, 0)


def test_a_claim_is_the_firsts_for_its_time(store, key):
    assert store.claim(key, 60)
    assert not store.claim(key, 60)
    assert store.claim(f"{key} 2", BRIEF)
    time.sleep(BRIEF)
    assert store.claim(f"{key} 2", BRIEF)


def test_a_claim_with_a_name_is_released_by_it_alone(store, key):
    assert store.claim(key, 10, "one")
    assert store.claim(key, 10, "one"), "the first answer may have been lost"
    assert not store.claim(key, 10, "two")
    assert not store.release(key, "two")
    assert store.release(key, "one")
    assert store.claim(key, 10, "two")


@pytest.mark.parametrize(
    ("change", "arguments"), [("finish", ["one", 60]), ("release", ["one"]), ("save", ["one", 1])]
)
def test_a_key_that_nobody_has_acquired_is_changed_by_nobody(store, key, change, arguments):
    assert getattr(store, change)(key, *arguments) is False
    assert store.acquire(key, "two", 60) == Acquired()


def test_a_lease_that_has_lapsed_is_its_owners_until_another_takes_the_key(store, key):
    store.acquire(key, "one", 0.01)
    time.sleep(0.02)
    assert store.save(key, "one", "late")
    assert store.acquire(key, "two", 60) == Acquired("late")
    assert not store.save(key, "one", "later")


def test_a_finish_without_a_time_to_live_frees_the_key(store, key):
    store.acquire(key, "one", 60)
    assert store.finish(key, "one", 0)
    assert store.acquire(key, "two", 60) == Acquired()


def test_a_store_without_a_breaker_is_always_asked(store):
    store.unanswered("no answer", 0.0)
    assert store.error == ""
    store.answered(0.0)
    assert store.error == ""


@pytest.fixture(params=["memory", "dynamodb"])
def timed(request, clock, monkeypatch):
    """A store whose clock stands still. Redis has a clock of its own."""
    if request.param == "memory":
        return MemoryStore(clock)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", request.getfixturevalue("emulator").url)
    return DynamoDBStore(create_table(), SETTINGS, clock)


def test_a_lease_lasts_its_seconds_and_tells_how_many_are_left(timed, clock, key):
    timed.acquire(key, "one", 60)
    clock.advance(59)
    assert timed.acquire(key, "two", 60) == Processing(1, "one")
    clock.advance(1)
    assert timed.acquire(key, "two", 60) == Acquired()
    assert timed.acquire(key, "one", 60) == Processing(60, "two")


@pytest.mark.parametrize("prolong", ["renew", "acquire"])
def test_a_lease_that_its_owner_prolongs_counts_from_then(timed, clock, key, prolong):
    timed.acquire(key, "one", 60)
    clock.advance(50)
    if prolong == "renew":
        assert timed.renew([Renewal(key, "one", 60)]) == [True]
    else:
        assert timed.acquire(key, "one", 60) == Acquired()
    clock.advance(59)
    assert timed.acquire(key, "two", 60) == Processing(1, "one")


def test_a_processed_key_is_free_at_the_end_of_its_time_to_live_which_a_second_finish_prolongs(
    timed, clock, key
):
    timed.acquire(key, "one", 60)
    assert timed.finish(key, "one", 100)
    clock.advance(50)
    assert timed.finish(key, "one", 100)
    clock.advance(99.5)
    assert timed.acquire(key, "two", 60) == Processed()
    clock.advance(0.5)
    assert timed.acquire(key, "two", 60) == Acquired()


def test_of_ten_that_race_for_a_key_one_has_it(store, key):
    together = threading.Barrier(10)

    def race(number):
        together.wait()
        return type(store.acquire(key, f"owner {number}", 60))

    with ThreadPoolExecutor(10) as pool:
        outcomes = Counter(pool.map(race, range(10)))
    assert outcomes == {Acquired: 1, Processing: 9}


@pytest.fixture(params=HANGING_STORES)
def hanging_store(request, emulator, monkeypatch, tmp_path):
    with HANGING_STORES[request.param](emulator, monkeypatch, tmp_path) as store:
        yield store


def test_a_store_that_hangs_is_waited_for_once_and_does_as_it_was_asked_when_it_goes_on(hanging_store, key):
    store = open_store(store_address("coordination_store", hanging_store.url), SETTINGS)
    assert store.acquire(key, "one", 60) == Acquired(None)
    before = hanging_store.asked()
    with hanging_store.hang(), pytest.raises(StoreUnavailableError):
        store.acquire(key, "one", 60)
    assert hanging_store.asked() == before + 1
    assert store.release(key, "one")


class InRedis:
    """Keys, and for how many seconds their records are kept."""

    def __init__(self, server, store):
        self.store = store
        self._client = redis.Redis.from_url(server.url)

    def left(self, key):
        return self._client.pttl(PREFIX + key) / 1000

    def shorten(self, key):
        self._client.expire(PREFIX + key, 10)

    def close(self):
        self._client.close()


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
def kept(request, monkeypatch):
    if request.param == "redis":
        keys = InRedis(request.getfixturevalue("redis_server"), request.getfixturevalue("redis_store"))
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", request.getfixturevalue("emulator").url)
        keys = InDynamoDB(FakeClock())
    yield keys
    keys.close()


def about(seconds):
    return pytest.approx(seconds, abs=WHILE_THE_TEST_RUNS)


def test_the_record_of_a_lease_is_kept_for_as_long_as_sqs_may_keep_its_message_after_that(kept, key):
    kept.store.acquire(key, "one", 3600)
    assert kept.left(key) == about(3600 + RECORD_SECONDS)


def test_the_record_of_a_claim_is_kept_for_its_time_and_no_longer(kept, key):
    """Beat makes one for each task that it sends."""
    assert kept.store.claim(key, 3600)
    assert kept.left(key) == about(3600)


def test_a_renewal_keeps_the_record_for_longer(kept, key):
    kept.store.acquire(key, "one", 60)
    kept.shorten(key)
    assert kept.store.renew([Renewal(key, "one", 3600)]) == [True]
    assert kept.left(key) == about(3600 + RECORD_SECONDS)


def test_the_record_of_a_processed_key_is_kept_for_its_time_to_live(kept, key):
    kept.store.acquire(key, "one", 60)
    assert kept.store.finish(key, "one", 7200)
    assert kept.left(key) == about(7200)


@pytest.mark.parametrize("change", ["release", "save"])
def test_a_key_that_is_released_or_saves_a_checkpoint_is_kept_as_long_as_before(kept, key, change):
    kept.store.acquire(key, "one", 3600)
    before = kept.left(key)
    assert kept.store.release(key, "one") if change == "release" else kept.store.save(key, "one", 1)
    assert kept.left(key) == pytest.approx(before, abs=WHILE_THE_TEST_RUNS)
