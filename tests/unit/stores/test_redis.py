"""Connection to Redis: bounded waits, and errors that say whether an answer came."""

from __future__ import annotations

import sys

import pytest
import redis
from support.redis_server import RedisServer

from celery_sqs_visibility.errors import OptionError, StoreError, StoreUnavailableError
from celery_sqs_visibility.stores.port import Renewal
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
