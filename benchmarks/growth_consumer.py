"""A consumer without a worker, which may hold any number of messages."""

from __future__ import annotations

import cost_worlds as worlds
from cost_run import TOGETHER
from support import factories
from support.lanes import work_off

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.delivery.lease_table import LeaseTable


class Consumer:
    """One that may hold any number of messages, and what the threads would do for it."""

    def __init__(self, measure, **options):
        self.sqs = measure.sqs
        self.leases = LeaseTable()
        self.own = factories.queue_consumer(worlds.Clock, prefetch_seconds=0, leases=self.leases, **options)
        self.own.capacity.prefetch_count = 0
        self.queue = factories.queue(self.sqs)
        self.own.consume(self.queue, lambda *_: None)

    def receive(self, messages, seconds=0.0):
        """Send and receive them, ten a request, that many seconds apart; the deliveries."""
        for _ in range(0, messages, TOGETHER):
            for _ in range(TOGETHER):
                self.sqs.queues[self.queue.url].send(OutgoingMessage("task"), self.sqs._now())
            self.take()
            worlds.advance(seconds)
        return self.own.held()

    def take(self):
        """What a poll brings; how many messages."""
        now, (receiver,) = worlds.Clock.monotonic(), self.own._receivers.all()
        messages = self.sqs.receive(self.queue.url, TOGETHER, 0, receiver._options)
        with receiver.lane.lock:
            receiver._polls.schedule.polled(now, [message["MessageId"] for message in messages])
        self.own._arrived(self.queue, messages, now, now)
        return len(messages)

    def settle(self):
        """Send all that is settled."""
        worlds.advance(1)
        work_off(self.own.holder.settler.lane)
