"""The models find defects that were mended: each is put back by one function, and a few worlds show it."""

from __future__ import annotations

import pytest
from celery import Celery, states
from support.models.copies import Copies
from support.models.holding import Holding
from support.models.keys import wait_for_keys
from support.models.steps import live_through
from support.models.stores import Stores

from celery_sqs_visibility.aws.breaker import Breaker
from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.settle.copies import Sending
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.policy.attempts import are_spent
from celery_sqs_visibility.worker.drain import LastRuns
from celery_sqs_visibility.worker.exclusive_request import ExclusiveRequest
from celery_sqs_visibility.worker.visibility_request import StoredResult, VisibilityRequest


def holding(_app, _patch, seed):
    live_through(Holding(), seed, steps=200)


def keys(app, patch, seed):
    wait_for_keys(app, patch, seed)


def copies(denied="none", most=500):
    return lambda _app, _patch, seed: live_through(Copies(denied, most), seed, steps=150)


def stores(app, patch, seed):
    live_through(Stores(app, patch), seed, steps=40)


def add_twice(ledger, deliveries):
    added = list(deliveries)
    for each in added:
        ledger._held[each.handle] = each
        each.held = True
        ledger._schedule([each])
    return added


def claim_and_let_lapse(ledger, delivery):
    if not delivery.held or delivery.claimed:
        return False
    delivery.claimed = True
    ledger._extensions.remove(delivery)
    return True


def begin_one(sending):
    if sending.stopping or sending.under_way or sending.next >= len(sending.copies):
        return []
    sending.next += 1
    sending.under_way.add(sending.next - 1)
    return [sending.next - 1]


def fail_by_receives(request):
    stored = StoredResult.read(request.task, request.id)
    spent = stored.status == states.STARTED and are_spent(request._attempt - 1, request._limit)
    if spent:
        request._fail_spent()
    return spent


#: What is put back, by the numbers of the cases: the model, and what of it is replaced by what.
DEFECTS = {
    "1: the end of a worker ends runs whose messages are deleted": (
        holding,
        (LastRuns, "late", lambda runs: runs._active()),
        "nothing is lost",
    ),
    "6: an original is not extended while its copies go out": (
        copies(),
        (Ledger, "claim", claim_and_let_lapse),
        "an original is held while its copies go out",
    ),
    "6: records go out one by one": (
        copies(),
        (Sending, "begin", begin_one),
        "ten records go out together",
    ),
    "7: an event that is interrupted starts anew": (
        copies(),
        (Sending, "remainder", lambda _sending: None),
        "what was sent is not sent again",
    ),
    "9: copies go where originals cannot be deleted": (
        copies("delete", most=5),
        (CopyPermissions, "_is_recent", lambda known, what, _queue: what is known._deleted),
        "copies do not grow",
    ),
    "12: a receive count says that a run is over": (
        keys,
        (VisibilityRequest, "_is_settled_unrun", fail_by_receives),
        "attempts are left",
    ),
    "17: each request to a store that hangs waits": (
        stores,
        (Breaker, "call", lambda _breaker, request, _refuse: request()),
        "nobody waits twice for a store that hangs|beat waits for one request at the most",
    ),
    "18: exclusive tasks take processes while the store hangs": (
        stores,
        (ExclusiveRequest, "_store_error", ""),
        "nobody waits twice for a store that hangs|a plain task does not wait",
    ),
    "31: a receipt handle is held twice": (
        holding,
        (Ledger, "add", add_twice),
        "capacity is freed",
    ),
}
WORLDS = 20


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_that_is_put_back_is_found(defect, monkeypatch):
    model, (owner, name, before), sentence = DEFECTS[defect]
    monkeypatch.setattr(owner, name, before)
    with Celery("unit", set_as_current=False, broker="memory://", backend="cache+memory://") as app:

        def in_some_world():
            for seed in range(WORLDS):
                model(app, monkeypatch, seed)

        with pytest.raises(AssertionError, match=sentence):
            in_some_world()
