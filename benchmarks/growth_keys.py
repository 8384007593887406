"""The subjects of exclusive tasks: their keys, in a store whose requests are counted as SQS's are."""

from __future__ import annotations

import cost_worlds as worlds
from growth_consumer import Consumer
from support.lanes import work_off

from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.policy.exclusive import owner_of
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.task.exclusive import ExclusiveRun
from celery_sqs_visibility.worker.key_leases import KeyLease, KeyLeases

TIMEOUT_SECONDS = 120
TTL_SECONDS = 3600
TOGETHER = 10


class Store(MemoryStore):
    """The other end: as Redis, it renews any number of keys in one request."""

    def __init__(self, measure):
        super().__init__(worlds.Clock())
        self._measure = measure

    def _request(self, call, *arguments):
        self._measure.sqs.calls.append(("Store", {}))
        return self._measure.sqs._uncounted(call, *arguments)

    def acquire(self, *arguments):
        return self._request(super().acquire, *arguments)

    def renew(self, renewals):
        return self._request(super().renew, renewals)

    def finish(self, *arguments):
        return self._request(super().finish, *arguments)


class Keys:
    """The keys of a worker's runs, and what begins them in the pool's children."""

    def __init__(self, measure):
        self.store = Store(measure)
        self.leases = KeyLeases(self.store, Pump(worlds.Clock))
        self.leases.start()

    def begin(self, number, delivery):
        """A run of its own key begins; what its request refers to, and the run."""
        delivery.start()
        lease = KeyLease(f"task:{number}", owner_of(delivery.facts.message_id, "run"), delivery)
        self.leases.add(lease)
        ownership = {"key": lease.key, "owner": lease.owner}
        run = ExclusiveRun(self.store, ownership, delivery.lease)
        run.begin(TIMEOUT_SECONDS, 0)
        return lease, run


def taken(measure, size):
    """A run takes its key, and finishes it. The worker forgets it."""
    consumer, keys = Consumer(measure), Keys(measure)
    measure.prepare()
    measure.start()
    for first in range(0, size, TOGETHER):
        deliveries = consumer.receive(TOGETHER)
        consumer.own._take_buffered()
        for number, delivery in enumerate(deliveries, first):
            _lease, run = keys.begin(number, delivery)
            run.end(TTL_SECONDS, succeeded=True)
            delivery.settle(Delete())
        consumer.settle()
        work_off(keys.leases.lane)
    measure.stop()


def renewed(measure, size):
    """A key is renewed after its message's extension, as all others are."""
    consumer, keys = Consumer(measure), Keys(measure)
    runs = [keys.begin(*each) for each in enumerate(consumer.receive(size))]
    worlds.advance(80)
    measure.prepare()
    measure.start()
    work_off(consumer.own.holder._heartbeat.lane)
    work_off(keys.leases.lane)
    measure.stop()
    if not all(lease.held for lease, _run in runs):
        raise RuntimeError("a key was lost")
