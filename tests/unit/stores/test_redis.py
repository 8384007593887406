"""Keys in Redis: bounded waits, errors that say whether an answer came, failovers and clusters."""

import sys

import pytest
import redis
from support.clock import FakeClock
from support.processes import wait_until
from support.redis_server import RedisServer, failover

from celery_sqs_visibility.errors import OptionError, StoreError, StoreUnavailableError
from celery_sqs_visibility.stores import redis as module
from celery_sqs_visibility.stores.port import Acquired, Processing, Renewal
from celery_sqs_visibility.stores.redis import PREFIX, TIMEOUT_SECONDS, RedisStore

URL = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def store(server):
    store = RedisStore(server.url)
    yield store
    store._redis.close()


def test_no_request_waits_for_longer_than_its_bound_and_one_on_a_closed_connection_is_repeated():
    settings = RedisStore(URL)._redis.connection_pool.connection_kwargs
    assert settings["socket_timeout"] == settings["socket_connect_timeout"] == TIMEOUT_SECONDS
    assert settings["retry_on_error"] == [redis.ConnectionError]
    assert settings["retry"]._supported_errors == (redis.ConnectionError,)
    assert settings["retry"]._retries == 2
    assert max(settings["retry"]._backoff.compute(failures) for failures in range(10)) == 0.5
    assert settings["retry"]._backoff.compute(1) == 0.2
    assert settings["decode_responses"]


def test_a_url_that_redis_does_not_take_is_refused_without_its_password():
    with pytest.raises(OptionError, match="percent-encoded") as refused:
        RedisStore("redis://:s3cret/rest@host:6379/0")
    assert "s3cret" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_without_redis_py_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.backoff", None)
    with pytest.raises(OptionError, match=r"pip install 'celery_sqs_visibility\[redis\]'"):
        RedisStore(URL)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.ConnectionError("closed"), StoreUnavailableError),
        (redis.TimeoutError("slow"), StoreUnavailableError),
        (redis.ResponseError("WRONGTYPE"), StoreError),
        (redis.ReadOnlyError("You can't write against a read only replica."), StoreUnavailableError),
        (redis.ResponseError("Error running script: @user_script: 8: -READONLY You"), StoreUnavailableError),
    ],
)
def test_an_error_says_whether_redis_has_answered(store, monkeypatch, error, kind):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setitem(store._scripts, "release", fail)
    with pytest.raises(StoreError) as raised:
        store.release("key", "one")
    assert type(raised.value) is kind
    assert str(raised.value) == f"Redis: {type(error).__name__}: {error}"
    assert raised.value.__cause__ is error


def test_a_redis_that_nobody_answers_for_is_an_error_too():
    with pytest.raises(StoreUnavailableError, match=r"^Redis: ConnectionError"):
        RedisStore(URL).claim("key", 1)


def test_an_error_within_a_pipeline_is_told_in_the_same_way(store, key):
    store._redis.set(PREFIX + key, "another program's")
    with pytest.raises(StoreError, match="Redis: ResponseError"):
        store.renew([Renewal(key, "one", 60)])


def test_an_answer_of_another_form_is_an_error(store, monkeypatch, key):
    monkeypatch.setitem(store._scripts, "acquire", lambda **_: ["taken"])
    with pytest.raises(StoreError, match=r"Redis has answered \['taken'\]"):
        store.acquire(key, "one", 60)


def test_keys_are_kept_apart_from_those_of_other_programs(store, key):
    store.acquire(key, "one", 60)
    store.renew([Renewal(key, "one", 60)])
    assert store._redis.keys(f"*{key}") == [PREFIX + key]


CLUSTER_SLOTS = 16384


@pytest.fixture
def start(tmp_path_factory):
    servers, clients = [], []

    def start(*options):
        servers.append(RedisServer(tmp_path_factory.mktemp("redis"), *options))
        servers[-1].start()
        clients.append(redis.Redis(port=servers[-1].port, decode_responses=True))
        return servers[-1], clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.stop()


@pytest.fixture
def open_store():
    stores = []

    def open_store(url):
        stores.append(RedisStore(url))
        return stores[-1]

    yield open_store
    for store in stores:
        store._redis.close()


def test_after_a_failover_keys_are_taken_renewed_and_claimed_once(tmp_path, open_store, key):
    with failover(tmp_path) as (address, fail_over):
        one, two = open_store(address.url), open_store(address.url)
        assert one.acquire(key, "one", 60) == Acquired()
        assert isinstance(two.acquire(key, "two", 60), Processing)
        fail_over()
        assert one.renew([Renewal(key, "one", 60)]) == [True]
        assert isinstance(two.acquire(key, "two", 60), Processing)
        claims = [(one.claim(f"{key} {due}", 60), two.claim(f"{key} {due}", 60)) for due in range(24)]
        assert claims == [(True, False)] * 24, "of two beats one sends"


def test_a_replica_and_a_full_redis_fail_the_probe(start, open_store):
    server, client = start()
    store = open_store(server.url)
    store.probe()
    client.config_set("maxmemory", "1")  # Redis 8 starts with less than a megabyte
    with pytest.raises(StoreError, match="OutOfMemory"):
        store.probe()
    client.config_set("maxmemory", "0")
    store.probe()
    client.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailableError, match="read only replica"):
        store.probe()


def test_a_connection_that_something_on_its_way_has_forgotten_is_not_used_again(
    start, open_store, monkeypatch, key
):
    clock = FakeClock()
    monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    server, client = start()
    store = open_store(server.url)
    store.acquire(key, "one", 60)
    before = {each["addr"] for each in client.client_list()}
    store.acquire(key, "one", 60)
    assert {each["addr"] for each in client.client_list()} == before
    clock.advance(module.IDLE_SECONDS + 1)
    store.acquire(key, "one", 60)
    assert {each["addr"] for each in client.client_list()} != before


def state(node):
    return str(node.execute_command("CLUSTER", "INFO"))


def test_keys_are_spread_over_a_cluster(start, open_store, key):
    (first, one), (_, two) = (start("--cluster-enabled", "yes") for _ in range(2))
    one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, CLUSTER_SLOTS // 2 - 1)
    two.execute_command("CLUSTER", "ADDSLOTSRANGE", CLUSTER_SLOTS // 2, CLUSTER_SLOTS - 1)
    two.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port)
    for node in (one, two):
        wait_until(lambda node=node: "cluster_state:ok" in state(node), 60, lambda node=node: state(node))
    store = open_store(first.url)
    keys = [f"{key} {number}" for number in range(20)]
    assert [store.acquire(each, "one", 60) for each in keys] == [Acquired()] * 20
    assert store.renew([Renewal(each, "one", 60) for each in keys]) == [True] * 20
    assert all(isinstance(store.acquire(each, "two", 60), Processing) for each in keys)
    assert all(store.save(each, "one", 7) and store.finish(each, "one", 60) for each in keys)
    assert one.dbsize() > 0 < two.dbsize()
    store.probe()
