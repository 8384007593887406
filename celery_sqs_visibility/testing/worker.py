"""A worker in one thread on the fake SQS: the package's own holder and requests, on the inline driver.

The world calls `take` and `send_all` when they are due. Tasks run as in Celery's solo pool.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.worker import state

from celery_sqs_visibility.aws.object_store import no_op
from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.core.giving_back import GivingBack
from celery_sqs_visibility.core.settlements import RELEASE, Settlement
from celery_sqs_visibility.delivery.arrivals import Arrivals
from celery_sqs_visibility.delivery.awaited_payloads import fetch
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.inline import InlinePump
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.receive.buffer import BufferedMessage
from celery_sqs_visibility.delivery.receive.decoder import Decoder, ReadContent
from celery_sqs_visibility.delivery.receive.receiver import OnMessage, Receivers
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.prefetch import PREFETCH_SECONDS
from celery_sqs_visibility.serverless.runs import Runs
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.encoding import eta_of

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore


class NoReceivers(Receivers):
    """No receivers: the world receives, and messages of any queue go to one callback."""

    def __init__(self, on_message: OnMessage) -> None:
        super().__init__()
        self._on_message = on_message

    def on_message(self, queue_name: str) -> OnMessage | None:  # noqa: ARG002 - the receivers'
        """Return the one callback, for any queue."""
        return self._on_message


class Worker(DeliveryHolder):
    """A process that works. It handles one message at a time, in the calling thread.

    Args:
        context: its own, as each process has one.
        leases: the table through which runs see their messages.
        wait: lets that many seconds pass, until a message's ETA.

    Attributes:
        name: its node's name in Celery.
        frozen: whether it does nothing for now, like a process that is stopped.
        dead: whether its process has died: nothing is settled any more.
    """

    def __init__(
        self, app: Celery[Any], context: BrokerContext, clock: Clock, leases: LeaseTable, wait: Any
    ) -> None:
        options = context.options
        self._inline = context.pump = pump = InlinePump(clock)
        super().__init__(options, context.redrive, pump, context.outgoing, settle_window=0.0)
        self.dead_letters.worker_name = context.worker_name
        self.capacity = Capacity(PREFETCH_SECONDS)
        self.give_leases(leases)
        self._context = context
        self._wait = wait
        self.name = context.worker_name
        self.frozen = self.dead = False
        self._runs = Runs(app, context)
        self._keys = self._runs.key_leases
        if self._keys is not None:
            self._keys.start()
        self._decoder = Decoder(context.decode_for_worker, self, clock, self)
        self._to_fetch: list[tuple[Delivery, PayloadPointer, ReceivedMessage]] = []
        self._arrivals = Arrivals(
            self._decoder,
            self,
            self.capacity,
            NoReceivers(self._run),
            self._give_back,
            GivingBack(),
            lambda *one: self._to_fetch.append(one),
        )

    def take(self, queue: Queue) -> bool:
        """Receive a message, run its task, and settle it. Returns whether there was one."""
        now = self._now()
        self.redrive.get(queue, now)
        messages = queue.sqs.receive(queue.url, 1, 0, self._context.receive_options_of(queue.name))
        arrived = self._arrivals.decode(queue, messages, now, now)
        while self._to_fetch:
            arrived += self._fetched(*self._to_fetch.pop())
        for one in arrived:
            one.dispatch(one, True)
        self.send_all()
        return bool(messages)

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        """A dead process settles nothing."""
        return not self.dead and super().settle(delivery, settlement, receipt)

    def send_all(self) -> None:
        """Make the requests that are due: extend, settle, send copies, renew keys."""
        if not (self.dead or self.frozen):
            self._inline.work_off()

    def next_due(self) -> float:
        """The monotonic instant at which its next request is due; infinity if none is."""
        return math.inf if self.dead or self.frozen else self._inline.next_due()

    def hand_back(self, delivery: Delivery) -> None:
        """End as after `shutdown_timeout`: release the keys, and make the run's message visible."""
        if self._keys is not None:
            self._keys.release_all()
        delivery.settle(RELEASE)
        self.send_all()

    def die(self) -> None:
        """End at once, as by SIGKILL. Its runs and leases are gone."""
        self.dead = True
        for delivery in self.of(self):
            state.requests.pop(delivery.facts.task_id or "", None)
            if delivery.lease is not None:
                delivery.lease.end()
        self.close()

    def close(self) -> None:
        """Stop listening to events."""
        if self._keys is not None:
            self._keys.stop()

    def _run(self, payload: dict[str, Any], delivery: Delivery) -> None:
        if (seconds := (eta_of(payload["headers"]) or 0.0) - self._clock.wall()) > 0:
            self._wait(seconds)
        self._runs.run(delivery, payload)

    def _fetched(
        self, delivery: Delivery, pointer: PayloadPointer, message: ReceivedMessage
    ) -> list[BufferedMessage]:
        """The message with its payload, as a worker's fetching threads return it."""
        payloads = cast("PayloadStore", self._context.payloads)  # or there would be no pointer
        content: ReadContent
        try:
            whole: ReceivedMessage = {**message, "Body": fetch(payloads.objects, pointer, no_op)}
            content = self._decoder.content(delivery.queue, whole)
        except UnreadableError as error:
            content = error
        return self._arrivals.fetched(delivery, content, message)

    def _give_back(self, delivery: Delivery) -> None:
        delivery.settle(RELEASE)

    # See `core.delivery.Consumer`.

    def loop_late(self, now: float) -> float:  # noqa: ARG002 - see `core.delivery.Consumer`
        """Return 0: there is no loop."""
        return 0.0

    def rest(self, delivery: Delivery, wait: Wait) -> None:
        """Do nothing: it takes one message at a time."""

    def resume(self, delivery: Delivery) -> None:
        """Do nothing: it takes one message at a time."""

    def free(self, delivery: Delivery) -> None:
        """Do nothing: it takes one message at a time, and has no threads."""

    def expect(self, queue: Queue, message_id: str, at: float) -> None:
        """Do nothing: the world polls."""

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> bool:  # noqa: ARG002
        """Hide a waiting message whose queue refuses the copy."""
        return self.settle_copied(delivery, delivery.after_an_error())
