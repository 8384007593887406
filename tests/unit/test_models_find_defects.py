"""The models find defects that were mended, and lines that are left out: a few worlds show each.

A defect is put back by one function. A line is replaced by another in the source of its function.
"""

import __future__

import inspect
import sys
import textwrap

import pytest
from celery import Celery, states
from support.models.copies import Copies
from support.models.holding import Holding
from support.models.keys import wait_for_keys
from support.models.steps import live_through
from support.models.stores import Stores
from support.models.whole import Whole

from celery_sqs_visibility.aws.breaker import Breaker
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.copies import PendingCopies, Sending
from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.giving_back import GivingBack
from celery_sqs_visibility.core.held import Arrival, Held
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.pump import Lane
from celery_sqs_visibility.delivery.settle.copies import Copies as SentCopies
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.watches import RunWatch
from celery_sqs_visibility.policy.retries import are_spent
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


def arrive_anew(held, delivery, _now, added):
    held.messages[delivery.message_key] = held._by_tag[delivery.tag] = delivery
    added.append(delivery)
    return Arrival.NEW, delivery


def claim_and_let_lapse(held, delivery, now):
    if not delivery.held or delivery.state is State.COPYING:
        return False
    delivery.state = State.COPYING
    held._extensions.remove(delivery)
    delivery.consumer.capacity.free(delivery, now)
    return True


def begin_one(sending):
    if sending.stopping or sending.under_way or sending.next >= len(sending.forward.messages):
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
        (LastRuns, "acknowledged_late", lambda runs: runs._active()),
        "nothing is lost",
    ),
    "6: an original is not extended while its copies go out": (
        copies(),
        (Held, "claim", claim_and_let_lapse),
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
        (Held, "_arrive", arrive_anew),
        "nothing went wrong where errors are swallowed",
    ),
}
WORLDS = 110

#: Functions, a line of each, what stands there instead, and what the model of a whole worker says then.
LINES = [
    (DeliveryHolder.settle, "self.pump.notify_waiting()", "pass", "nobody has notified <drain>"),
    (Held._end_run, "lease.end()", "pass", "no run has a lease"),
    (Held._remove, "self._extensions.remove(delivery)", "pass", "nothing is to be extended"),
    (
        Held.finish,
        "self._finished.add(delivery.message_key, now, delivery.deadline + MARGIN_SECONDS)",
        "pass",
        "what this process has finished is over",
    ),
    (Held._hold, "consumer.capacity.count(added[0], len(added))", "pass", "capacity is counted"),
    (Held.claim, "self._end_run(delivery, now)", "pass", "capacity is counted"),
    (Held.settle, "self._end_run(delivery, now)", "pass", "capacity is counted"),
    (Capacity.end_run, "self._fifo.runs.discard(delivery)", "pass", "no capacity of FIFO queues is taken"),
    (Capacity.end_run, "self._turns.end_run(delivery)", "pass", "nothing counts for its queue"),
    (Capacity.free, "self._end_wait(delivery)", "pass", "capacity is counted"),
    (Capacity.free, "self._turns.end(delivery)", "pass", "nothing is held"),
    (QueueConsumer.free, "self._serve(delivery.queue.name)", "pass", "there was capacity for"),
    (SentCopies.submit, "self.lane.wake()", "pass", "nobody has woken the thread that sends copies"),
    (PendingCopies.take, "self.stop_late(now)", "pass", "unexpected error in a thread that sends copies"),
    (
        PendingCopies.answered,
        "self._stop(sending, now)",
        "self._go_on(sending, now)",
        "unexpected error in a thread",
    ),
    (RunWatch._end_if_inactive, "inactivity.end_run()", "pass", "a run that shows no life is ended"),
    (Lane.conclude, "self._pump.notify_waiting()", "pass", "nobody has notified"),
    (Lane.flush, "self.wake()", "pass", "nobody has woken the thread that settles"),
    (
        QueueConsumer._put,
        "self.holder.extend_in_time()",
        "pass",
        "nobody has woken the thread that extends messages",
    ),
    (QueueConsumer.notice_pause, "receiver.wake()", "pass", "all is done"),
]


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


def replace_line(function, line, instead, monkeypatch):
    """In its class, whose module it goes on to see."""
    module, (owner, name) = sys.modules[function.__module__], function.__qualname__.split(".")
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, f"{function.__qualname__} has the line once"
    future = __future__.annotations.compiler_flag
    made = {}
    exec(compile(source.replace(line, instead), "<changed>", "exec", future), module.__dict__, made)
    monkeypatch.setattr(vars(module)[owner], name, made[name])


@pytest.mark.slow("each tries up to 110 worlds")
@pytest.mark.parametrize(
    ("function", "line", "instead", "sentence"),
    LINES,
    ids=[f"{function.__qualname__}: {line}" for function, line, _, _ in LINES],
)
def test_a_line_that_is_left_out_is_found(function, line, instead, sentence, monkeypatch):
    replace_line(function, line, instead, monkeypatch)

    said = []
    for seed in range(WORLDS):
        try:
            live_through(Whole(seed), seed, steps=100)
        except AssertionError as error:
            said.append(str(error))
            if sentence in said[-1]:
                return
    raise AssertionError(said)


@pytest.mark.parametrize("seed", range(4))
def test_a_drain_that_takes_no_time_to_hand_back_is_found(seed, monkeypatch):
    """In a world that is told: in one of chance hardly any drain has the calm for it."""
    replace_line(GivingBack.flush_ends, "+ HAND_BACK_SECONDS", "", monkeypatch)
    world = Whole(seed)
    try:
        world.wait(40)
        world.publish("second", count=12)
        world.wait(3)
        world.shut_down(1)
        with pytest.raises(AssertionError, match="a drain has the time to settle"):
            world.wait(10)
    finally:
        world.close()
