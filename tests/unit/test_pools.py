"""What a pool with processes forgets at a consumer's end, and what it must not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_sqs_visibility.delivery.model import Release
from celery_sqs_visibility.pools import keep_what_was_sent
from celery_sqs_visibility.request import DeliveryRequest

ALIVE = SimpleNamespace(_is_alive=lambda: True)
DEAD = SimpleNamespace(_is_alive=lambda: False)


class Held:
    """A delivery that notes how it is settled."""

    def __init__(self):
        self.settled = []

    def settle(self, settlement):
        self.settled.append(settlement)


def job(sent_to=None, *, accepted=False, ended=False):
    request = DeliveryRequest.__new__(DeliveryRequest)
    request.delivery = Held()
    return SimpleNamespace(
        _accepted=accepted, _write_to=sent_to, _callback=request.on_success, ready=lambda: ended
    )


def settled(one):
    return one._callback.__self__.delivery.settled


class Pool:
    """Forgets, as Celery's does, what nobody has accepted."""

    def __init__(self, *jobs):
        self._pool = SimpleNamespace(_cache=dict(enumerate(jobs)))
        self.flush = self.forget

    def forget(self):
        for number, one in list(self.cache.items()):
            if not one._accepted:
                del self.cache[number]

    @property
    def cache(self):
        return self._pool._cache


@pytest.mark.parametrize("times", [1, 2])
def test_what_was_sent_to_a_child_is_waited_for(times):
    sent, accepted = job(ALIVE), job(ALIVE, accepted=True)
    pool = Pool(sent, accepted)
    for _ in range(times):  # a consumer may start more than once
        keep_what_was_sent(pool)
    pool.flush()
    assert sorted(pool.cache) == [0, 1]
    assert settled(sent) == settled(accepted) == []


@pytest.mark.parametrize("sent_to", [None, DEAD])
def test_what_no_child_has_is_given_back(sent_to):
    waiting = job(sent_to)
    pool = Pool(waiting)
    keep_what_was_sent(pool)
    pool.flush()
    assert pool.cache == {}
    assert settled(waiting) == [Release()]


def test_what_ended_meanwhile_is_left_alone():
    done = job(ALIVE, ended=True)
    pool = Pool(done)
    keep_what_was_sent(pool)
    pool.flush()
    assert pool.cache == {}
    assert settled(done) == []


def test_a_pool_that_has_nothing_to_forget_with_is_left_alone():
    pool = Pool()
    pool.flush = None  # Celery's, where there is no event loop
    keep_what_was_sent(pool)
    assert pool.flush is None
