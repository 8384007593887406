"""The waits for a key, as a model: a run that goes on is not failed, and a receive that waited is no attempt.

Messages of one task id, or of two tasks with one key, are received by any worker, at any time; their leases
hold or are lost; workers die. Requests are a worker's own, runs begin as in a pool's child, the store keeps
its records in memory, on a clock that the machine turns.
"""

import os
import random
from types import SimpleNamespace

from celery import states
from support.clock import FakeClock
from support.factories import FakeHolder, exc_info, held_delivery, request

from celery_sqs_visibility.core.settlements import RELEASE, Delete, Forward, Hide, Purpose
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Renewal
from celery_sqs_visibility.task import exclusive
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.exclusive import NotRun
from celery_sqs_visibility.task.retries import VisibilityRetry

TIMEOUT = 30
MAX_RETRIES = 2


def nothing():
    """A task."""


class Message:
    """A message in the queue; `attempts` are the runs that have begun for it."""

    def __init__(self, name, *, copied):
        self.name, self.copied = name, copied
        self.receives = self.attempts = self.published_retries = 0
        self.visible_at = 0.0


class Run:
    """A run in a worker, with the request there."""

    def __init__(self, message, made, exclusive_run):
        self.message, self.made, self.exclusive_run = message, made, exclusive_run
        self.receipt = message.receives


class Keys:
    """Workers, a queue and the store between them."""

    def __init__(self, app, monkeypatch, chance):
        self.clock, self.chance = FakeClock(), chance
        self.store = MemoryStore(self.clock)
        self.table = LeaseTable()
        context = SimpleNamespace(options=Options.parse({}), coordination_store=self.store)
        monkeypatch.setattr(exclusive, "broker_context", lambda _app: context)
        monkeypatch.setattr(exclusive, "SYSTEM_CLOCK", self.clock)
        monkeypatch.setattr(exclusive, "find_lease", lambda key: key and self.leases[key])
        options = {"max_retries": MAX_RETRIES, "error_visibility_timeout": 1, "exclusive": True}
        app.task(nothing, name="one", base=VisibilityTask, shared=False, **options)
        self.task = app.tasks["one"]
        self.leases = {}
        self.status = states.PENDING
        app.backend.get_task_meta = lambda _id, cache=True: {"status": self.status}
        self.messages = [
            Message(name, copied=chance.random() < 0.5) for name in ("m1", "m2")[: chance.choice([1, 1, 2])]
        ]
        self.alone = len(self.messages) == 1
        self.runs = []
        self.given_up = 0

    def receive(self, message):
        """A worker receives it: it runs, waits for the key, or is failed."""
        if message.visible_at > self.clock.monotonic():
            return
        message.receives += 1
        message.visible_at = self.clock.monotonic() + TIMEOUT
        holder = FakeHolder(visibility_timeout=TIMEOUT)
        facts = {"receive_count": message.receives, "message_id": message.name, "first_received": 1.0}
        delivery = held_delivery(holder, **facts)
        delivery.lease = self.table.take(message.visible_at, lambda _: None)
        self.leases[delivery.lease.key] = delivery.lease
        made = request(self.task, delivery, retries=message.published_retries)
        made.worker.key_leases = SimpleNamespace(
            add=lambda _: None, release=self.release, store=SimpleNamespace(error="")
        )
        made.message.renewal = lambda _eta, retries, _otherwise: (
            self.copy(retries) if message.copied else None
        )
        made.holder = holder
        if made.revoked():
            self.settled(message, made)
            return
        made.dispatch()
        sent = made._request_dict
        try:
            run, _ = exclusive._begin(self.task, sent["visibility_exclusive"], sent)
        except NotRun as outcome:
            made.on_failure(exc_info(outcome), return_ok=True)
            self.settled(message, made)
            return
        known = message.published_retries + message.attempts
        if self.alone:
            assert run.retries == known, "a receive that waited is no attempt"
        assert run.retries >= known
        assert not self.runs, "one run at a time"
        message.attempts += 1
        self.status = states.STARTED
        self.runs.append(Run(message, made, run))

    def copy(self, retries):
        return Forward(Purpose.RENEWAL, retries, lambda _error: RELEASE)

    def release(self, lease, _delay):
        self.store.release(lease.key, lease.owner)

    def settled(self, message, made):
        (settlement, *_) = made.holder.settled
        match settlement:
            case Hide(seconds):
                message.visible_at = self.clock.monotonic() + seconds
            case Forward(Purpose.RENEWAL, retries):
                message.receives, message.attempts, message.published_retries = 0, 0, retries
                message.visible_at = self.clock.monotonic()
            case Delete():
                self.messages.remove(message)
            case _:  # given up
                assert not self.runs, "a run that goes on is not failed"
                assert message.published_retries + message.attempts > MAX_RETRIES, "attempts are left"
                self.messages.remove(message)
                self.status = states.FAILURE
                self.given_up += 1

    def extend(self, run, *, message_too=True):
        """The key's lease is prolonged; that of its message, too, unless it is lost."""
        delivery = run.made.delivery
        owned = Renewal(run.made._ownership["key"], run.made._ownership["owner"], TIMEOUT)
        assert self.store.renew([owned]) == [True]
        if message_too and run.receipt == run.message.receives:
            run.message.visible_at = self.clock.monotonic() + TIMEOUT
            delivery.lease.deadline = run.message.visible_at

    def wait(self, seconds):
        """Workers that live prolong the keys of their runs, whatever becomes of the messages."""
        for _ in range(seconds // 10):
            self.clock.advance(10)
            for run in self.runs:
                self.extend(run, message_too=self.chance.random() < 0.3)

    def end(self, run, how):
        self.runs.remove(run)
        if how == "dies":
            return  # the key lapses, and so does the message
        run.exclusive_run.end(1000.0, succeeded=how == "succeeds")
        made, held = run.made, run.receipt == run.message.receives and run.message in self.messages
        if how == "succeeds":
            self.status = states.SUCCESS
            if held:
                self.messages.remove(run.message)
            return
        last = run.message.attempts + run.message.published_retries > MAX_RETRIES
        error = ValueError("no")
        if last:
            self.status = states.FAILURE
            self.messages.remove(run.message)
        else:
            self.status = states.RETRY
            made.on_retry(exc_info(VisibilityRetry(None, error, 1.0)))
            if held:
                run.message.visible_at = self.clock.monotonic() + 1

    def step(self):
        chance = self.chance
        if self.runs and chance.random() < 0.08:
            self.end(self.runs[0], chance.choice(["succeeds", "fails", "dies"]))
        elif chance.random() < 0.4:
            self.wait(chance.choice([10, 30, 60]))
        else:
            self.receive(chance.choice(self.messages))

    def close(self):
        for end in self.table._pipe:
            os.close(end)


def wait_for_keys(app, patch, seed):
    """A world of chance, of 150 steps."""
    world = Keys(app, patch, random.Random(seed))
    try:
        for _ in range(150):
            if not world.messages:
                break
            world.step()
    finally:
        world.close()
