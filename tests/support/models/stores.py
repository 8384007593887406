"""A store that hangs, as a model: only who asked before it was known waits, and nobody else.

A worker with two processes runs plain tasks and exclusive ones, and beat claims a task each second. Each
process has the store behind a breaker of its own. Threads are simulated, and so is time.
"""

import os
import random
from types import SimpleNamespace

from support.clock import FakeClock
from support.factories import FakeHolder, exc_info, held_delivery, request
from support.models.steps import step
from support.scheduler import Scheduler

from celery_sqs_visibility.beat import SendsOnce
from celery_sqs_visibility.core.settlements import Hide, Why
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import StoreUnavailableError
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.stores.guarded import GuardedStore
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.task import exclusive
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.exclusive import NotRun
from celery_sqs_visibility.worker.key_leases import KeyLeases

TIMEOUT = 3.0  # of a request to the store
TICK = 0.5  # seconds in which a worker hands tasks to its processes
SLOTS = 2
HIDDEN = 30


def nothing():
    """A task."""


class HangingStore(MemoryStore):
    """Does not answer while the world says so."""

    def __init__(self, world, process):
        super().__init__(world.clock)
        self._records = world.records
        self._world, self._process = world, process

    def _ask(self, *, told=False):
        """`told`: its process tells the worker's main process when no answer comes."""
        world = self._world
        until = world.clock.monotonic() + TIMEOUT
        world.note_asked(self._process)
        while world.hangs and world.clock.monotonic() < until:
            world.threads.sleep(TICK)
        if world.hangs:
            world.silent |= {self._process} | ({"worker"} if told else set())
            raise StoreUnavailableError("no answer in 3 s")

    def acquire(self, *args):
        self._ask(told=self._process != "beat")
        return super().acquire(*args)

    def _change(self, *args):
        self._ask()
        return super()._change(*args)


class Beat(SendsOnce):
    """Beat, without a schedule."""

    def __init__(self, store):
        self._exclusive_store = lambda: store

    def _is_claimed(self, _entry):
        return True


class Stores:
    """A worker, beat and their store."""

    def __init__(self, app, patch):
        self.clock = FakeClock()
        self.threads = Scheduler(self.clock, random.Random(0))
        self.records = {}
        self.hangs = False
        self.silent = (
            set()
        )  # who knows that the store does not answer: processes, "worker" for all of its own
        self.wrong = []  # what may not raise where it happens
        self.stores = {}  # of the pool's processes, by the thread that is one just now
        self.children = [self.guarded(f"child {n}") for n in range(SLOTS)]
        self.free = list(self.children)
        self.key_leases = KeyLeases(self.guarded("worker"), Pump(self.clock))
        self.table, self.leases = LeaseTable(), {}
        self.waiting = []  # messages: [visible at, sent at, whether exclusive, whether the outage is known]
        patch.setattr(exclusive, "broker_context", lambda _app: self.context())
        patch.setattr(exclusive, "SYSTEM_CLOCK", self.clock)
        patch.setattr(exclusive, "find_lease", lambda key: key and self.leases[key])
        app.task(nothing, name="one", base=VisibilityTask, shared=False, exclusive=True)
        self.task = app.tasks["one"]
        self.threads.start(self.dispatch, "worker")
        self.threads.start(self.beat, "beat")

    def guarded(self, process):
        store = GuardedStore(HangingStore(self, process), self.threads.start, self.clock)
        store._breaker._wait = self.threads.sleep
        return store

    def context(self):
        return SimpleNamespace(options=Options.parse({}), coordination_store=self.stores[self.threads.me])

    def note_asked(self, process):
        """A request to the store; the probe's are nobody's."""
        if self.threads.me.name != "sqs-probe":
            known = process in self.silent or (process != "beat" and "worker" in self.silent)
            if self.hangs and known:
                self.wrong.append(f"{process} waits for a store of whose silence it knows")

    # What the worker's main process and beat do

    def dispatch(self):
        while True:
            for message in list(self.waiting):
                if self.free and message[0] <= self.clock.monotonic():
                    self.waiting.remove(message)
                    self.run(*message)
            self.threads.sleep(TICK)

    def run(self, _visible_at, sent_at, is_exclusive, known):
        waited = self.clock.monotonic() - sent_at
        if is_exclusive:
            self.run_exclusively(sent_at)
            return
        assert waited <= TIMEOUT + 2 * TICK, "a plain task waits no longer than the first request"
        assert waited <= 2 * TICK or not known, "a plain task does not wait where the silence is known"

    def run_exclusively(self, sent_at):
        holder = FakeHolder(visibility_timeout=HIDDEN)
        delivery = held_delivery(holder, receive_count=1)
        delivery.lease = self.table.take(self.clock.monotonic() + HIDDEN, lambda _: None)
        self.leases[delivery.lease.key] = delivery.lease
        made = request(self.task, delivery)
        made.worker.key_leases = self.key_leases
        made.message.renewal = lambda *_: None
        if made.dispatch():
            child = self.free.pop()
            self.threads.start(lambda: self.in_child(child, made, holder, sent_at), "child")
        else:
            self.come_back(holder, sent_at)

    def in_child(self, child, made, holder, sent_at):
        self.stores[self.threads.me] = child
        try:
            run, ttl = exclusive._begin(
                self.task, made._request_dict["visibility_exclusive"], made._request_dict
            )
        except NotRun as outcome:
            made.on_failure(exc_info(outcome), return_ok=True)
            self.come_back(holder, sent_at)
        else:
            run.end(ttl, succeeded=True)
        self.free.append(child)

    def come_back(self, holder, sent_at):
        (settlement,) = holder.settled
        if isinstance(settlement, Hide) and settlement.why is Why.KEY:
            self.waiting.append([self.clock.monotonic() + settlement.seconds, sent_at, True, False])

    def beat(self):
        beat, due = Beat(self.guarded("beat")), self.clock.monotonic()
        while True:
            assert beat._may_send(None, f"{due}"), "it is sent, claimed or not"
            assert self.clock.monotonic() - due <= TIMEOUT + TICK, "beat waits for one request at the most"
            due += 1
            self.threads.sleep(max(0.0, due - self.clock.monotonic()))

    # What may happen

    @step(often=3, is_exclusive=[True, True, False], count=range(1, 5))
    def send(self, is_exclusive, count):
        now, known = self.clock.monotonic(), self.hangs and "worker" in self.silent
        self.waiting += [[now, now, is_exclusive, known] for _ in range(count)]

    @step(often=4, seconds=[0.5, 1, 2, 5, 20])
    def wait(self, seconds):
        self.threads.advance(seconds)

    @step()
    def stop_or_continue(self):
        """SIGSTOP or SIGCONT, for the store."""
        self.hangs = not self.hangs
        self.silent.clear()
        if not self.hangs:
            self.threads.advance(2 * TIMEOUT)  # it is probed, and what was late is done

    def all_is_well(self):
        """The threads assert the rest."""
        assert self.wrong == [], "nobody waits twice for a store that hangs"

    def end_everything(self):
        self.hangs = False
        self.silent.clear()
        self.threads.advance(4 * HIDDEN)
        assert not self.waiting, "all run when the store answers again"

    def close(self):
        self.threads.kill(self.threads.threads)
        for end in self.table._pipe:
            os.close(end)
