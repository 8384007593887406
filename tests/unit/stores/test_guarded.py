"""A guarded store passes requests on, and refuses them after one that was not answered."""

import threading

import pytest

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.errors import StoreError, StoreUnavailableError
from celery_sqs_visibility.policy.exclusive import store_address
from celery_sqs_visibility.stores import dynamodb
from celery_sqs_visibility.stores.dynamodb import DynamoDBStore
from celery_sqs_visibility.stores.guarded import GuardedStore, open_store
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import (
    PROBE_SECONDS,
    PROBED_KEY,
    RECORD_SECONDS,
    Acquired,
    ExclusiveStore,
    Processed,
    Renewal,
)
from celery_sqs_visibility.stores.redis import RedisStore

CALLS = [
    ("acquire", ("key", "one", 60, 3, 7)),
    ("renew", ([Renewal("key", "one", 60)],)),
    ("finish", ("key", "one", 100)),
    ("release", ("key", "one")),
    ("save", ("key", "one", {"page": 7})),
]


class NotingStore(ExclusiveStore):
    """Notes its calls, and answers with their number, or with an error."""

    def __init__(self):
        self.calls = []
        self.error_raised = None

    def _note(self, *call):
        self.calls.append(call)
        if self.error_raised is not None:
            raise self.error_raised
        return len(self.calls)

    def acquire(self, key, owner, seconds, retries=0, kept=0):
        return self._note("acquire", key, owner, seconds, retries, kept)

    def renew(self, renewals):
        return self._note("renew", renewals)

    def finish(self, key, owner, ttl):
        return self._note("finish", key, owner, ttl)

    def release(self, key, owner):
        return self._note("release", key, owner)

    def save(self, key, owner, checkpoint):
        return self._note("save", key, owner, checkpoint)


@pytest.fixture
def store():
    return NotingStore()


@pytest.fixture
def threads():
    return []


@pytest.fixture
def guarded(store, clock, threads):
    def start(target, name):
        threads.append((target, name))
        return threading.current_thread()

    return GuardedStore(store, start, clock)


@pytest.mark.parametrize(("name", "arguments"), CALLS)
def test_a_request_and_its_answer_are_passed_on(guarded, store, name, arguments):
    assert getattr(guarded, name)(*arguments) == 1
    assert store.calls == [(name, *arguments)]


def test_a_run_without_attempts_before_it_says_so(guarded, store):
    guarded.acquire("key", "one", 60)
    assert store.calls == [("acquire", "key", "one", 60, 0, RECORD_SECONDS)]


@pytest.mark.parametrize(("name", "arguments"), CALLS)
def test_after_a_request_without_an_answer_no_other_is_made(guarded, store, threads, name, arguments):
    store.error_raised = StoreUnavailableError("no answer")
    with pytest.raises(StoreUnavailableError, match="no answer"):
        guarded.release("key", "one")
    assert "no answer" in guarded.error
    with pytest.raises(StoreError):
        getattr(guarded, name)(*arguments)
    assert len(store.calls) == len(threads) == 1


def test_a_refusal_is_an_answer(guarded, store, threads):
    store.error_raised = StoreError("not allowed")
    for _ in range(2):
        with pytest.raises(StoreError, match="not allowed"):
            guarded.release("key", "one")
    assert (len(store.calls), guarded.error, threads) == (2, "", [])


def test_the_probe_takes_and_releases_a_key_that_no_run_has_and_the_answer_lets_requests_through(
    guarded, store, threads
):
    store.error_raised = StoreUnavailableError("no answer")
    with pytest.raises(StoreUnavailableError):
        guarded.release("key", "one")
    store.error_raised = None
    ((probe, _name),) = threads
    probe()
    assert store.calls[1:] == [
        ("acquire", PROBED_KEY, PROBED_KEY, PROBE_SECONDS, 0, 0),
        ("release", PROBED_KEY, PROBED_KEY),
    ]
    assert guarded.error == ""
    assert guarded.release("key", "one") == 4


def test_what_another_process_was_not_answered_counts_here_until_it_was(guarded, clock):
    guarded.unanswered("no answer there", clock.monotonic())
    assert "no answer there" in guarded.error
    clock.advance(1)
    guarded.answered(clock.monotonic())
    assert guarded.error == ""


def test_a_follower_is_told_when_the_store_answers_again(guarded, store, threads, clock):
    told = []
    guarded.follow(told.append)
    store.error_raised = StoreUnavailableError("no answer")
    with pytest.raises(StoreUnavailableError):
        guarded.claim("key", 60)
    store.error_raised = None
    clock.advance(5)
    threads[0][0]()
    assert told


def test_apps_whose_queues_have_other_prefixes_share_a_store_and_no_key(clock):
    shared = MemoryStore(clock)
    staging, production, again = (
        GuardedStore(shared, lambda *_: None, clock, prefix=prefix) for prefix in ("staging-", "", "staging-")
    )
    for each in (staging, production):
        assert each.acquire("key", "one", 60) == Acquired()
        assert each.renew([Renewal("key", "one", 60)]) == [True]
        assert each.save("key", "one", 1)
    assert staging.claim("beat:daily@noon", 60)
    assert production.claim("beat:daily@noon", 60)
    assert not again.claim("beat:daily@noon", 60)
    assert staging.finish("key", "one", 60)
    assert again.acquire("key", "two", 60) == Processed()
    assert production.release("key", "one")
    assert production.acquire("key", "two", 60) == Acquired(1)


def test_a_store_is_opened_by_its_address(monkeypatch):
    tables = []
    monkeypatch.setattr(dynamodb, "Table", lambda name, settings: tables.append((name, settings)))
    stores = [
        open_store(store_address("coordination_store", url), ClientSettings("us-east-1", "https://sqs.test"))
        for url in ("rediss://host/1", "dynamodb://keys", "dynamodb://keys?region=eu-west-1")
    ]
    assert [type(store) for store in stores] == [RedisStore, DynamoDBStore, DynamoDBStore]
    assert tables == [("keys", ClientSettings("us-east-1")), ("keys", ClientSettings("eu-west-1"))]
