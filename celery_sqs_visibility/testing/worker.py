"""A worker in one thread on the fake SQS: the package's own holder and requests, without their threads.

It differs from a Celery worker in its driver: the world calls `take` and `send_all` when it is time. Tasks
run as in Celery's solo pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.worker import state

from celery_sqs_visibility.aws.object_store import no_op
from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.core.settlements import RELEASE, Renew, Settlement
from celery_sqs_visibility.delivery.arrivals import Arrivals
from celery_sqs_visibility.delivery.awaited_payloads import fetch
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.receive.buffer import BufferedMessage
from celery_sqs_visibility.delivery.receive.decoder import Decoder, ReadContent
from celery_sqs_visibility.delivery.receive.receiver import OnMessage, Receivers
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.events import Extended, Lost, Superseded, subscribe
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.prefetch import PREFETCH_SECONDS
from celery_sqs_visibility.serverless.runs import Runs
from celery_sqs_visibility.stores.port import ExclusiveStore
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.codec import eta_of
from celery_sqs_visibility.worker.key_leases import KeyLeases

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore


class Keys(KeyLeases):
    """Leases of keys, renewed when the worker beats."""

    def __init__(self, store: ExclusiveStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._ends = [subscribe(self._on_event, kind) for kind in (Extended, Superseded, Lost)]

    def release_now(self) -> None:
        """Release all keys, as at the end of a worker's shutdown."""
        for lease in list(self._leases.values()):
            if lease.held:
                self._store.release(lease.key, lease.owner)

    def close(self) -> None:
        """Hear of no more events."""
        for end in self._ends:
            end()


class WorkerRuns(Runs):
    """Runs of one worker, whose keys are renewed.

    Attributes:
        keys: of exclusive tasks; `None` where no task is exclusive.
    """

    def __init__(self, app: Celery[Any], context: BrokerContext, clock: Clock) -> None:
        super().__init__(app, context)
        self.keys: Keys | None = None
        if self._worker.key_leases is not None:
            store = cast("ExclusiveStore", context.coordination_store)
            self._worker.key_leases = self.keys = Keys(store, clock)


class Handing(Receivers):
    """Receivers of nothing: the world polls. Messages of any queue go to one callback."""

    def __init__(self, on_message: OnMessage) -> None:
        super().__init__()
        self._on_message = on_message

    def on_message(self, queue_name: str) -> OnMessage | None:  # noqa: ARG002 - the receivers'
        """The one callback."""
        return self._on_message


class Worker(DeliveryHolder):
    """One process that works. It takes one message at a time, on the calling thread.

    Args:
        app: the app of its tasks.
        context: its own, as each process has one.
        clock: turned by `wait`.
        leases: the table by which runs see their messages.
        wait: lets so many seconds pass until a message's ETA.

    Attributes:
        name: as Celery names its node.
        frozen: whether it does nothing for now, as a process that is stopped.
        dead: whether its process is gone: nothing is settled any more.
    """

    def __init__(
        self, app: Celery[Any], context: BrokerContext, clock: Clock, leases: LeaseTable, wait: Any
    ) -> None:
        options = context.options
        super().__init__(options, context.redrive, clock, Pump(clock), context.outgoing, settle_window=0.0)
        self.dead_letters.worker_name = context.worker_name
        self.capacity = Capacity(PREFETCH_SECONDS)
        self.give_leases(leases)
        self._context = context
        self._wait = wait
        self.name = context.worker_name
        self.frozen = self.dead = False
        self._runs = WorkerRuns(app, context, clock)
        self._decoder = Decoder(
            context.decode_for_worker, options.for_queue, clock, self, self, options.readable_payloads
        )
        self._to_fetch: list[tuple[Delivery, PayloadPointer, ReceivedMessage]] = []
        self._arrivals = Arrivals(
            self._decoder,
            self,
            self.capacity,
            Handing(self._run),
            self._give_back,
            lambda *one: self._to_fetch.append(one),
        )

    def take(self, queue: Queue) -> bool:
        """Receive a message, run its task, and settle it; whether there was one."""
        now = self._clock.monotonic()
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
        """See `core.delivery.Holder`. A dead process settles nothing."""
        return not self.dead and super().settle(delivery, settlement, receipt)

    def send_all(self) -> None:
        """Do what its threads would do by now: extend, settle, send copies, renew keys."""
        if self.dead or self.frozen:
            return
        while any(threads.send_next() for threads in self._lanes()):
            pass

    def next_beat(self) -> float | None:
        """The monotonic instant at which its threads have work again; `None` if there is nothing to do."""
        if self.dead or self.frozen:
            return None
        dues = [self.next_extension(), self._runs.keys.due(0.0) if self._runs.keys else None]
        return min((due for due in dues if due is not None), default=None)

    def hand_back(self, delivery: Delivery) -> None:
        """End as after `shutdown_timeout`: keys are released, the run's message is visible at once."""
        if self._runs.keys is not None:
            self._runs.keys.release_now()
        delivery.settle(RELEASE)
        self.send_all()

    def die(self) -> None:
        """End without a word, as by SIGKILL. The machine forgets its runs and leases."""
        self.dead = True
        for delivery in self.of(self):
            state.requests.pop(delivery.facts.task_id or "", None)
            if delivery.lease is not None:
                delivery.lease.end()
        self.close()

    def close(self) -> None:
        """Hear of no more events."""
        if self._runs.keys is not None:
            self._runs.keys.close()

    def _run(self, payload: dict[str, Any], delivery: Delivery) -> None:
        if (seconds := (eta_of(payload["headers"]) or 0.0) - self._clock.wall()) > 0:
            self._wait(seconds)
        self._runs.run(delivery, payload)

    def _fetched(
        self, delivery: Delivery, pointer: PayloadPointer, message: ReceivedMessage
    ) -> list[BufferedMessage]:
        """The message with its payload, as the threads that fetch bring it."""
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

    def _lanes(self) -> list[Lane[Any]]:
        return [*self.lanes, self._runs.keys.lane] if self._runs.keys is not None else self.lanes

    # See `core.delivery.Consumer`.

    def loop_late(self, now: float) -> float:  # noqa: ARG002 - see `core.delivery.Consumer`
        """0: it has no loop."""
        return 0.0

    def rest(self, delivery: Delivery, wait: Wait) -> None:
        """Nothing: it takes one message at a time."""

    def resume(self, delivery: Delivery) -> None:
        """Nothing: it takes one message at a time."""

    def free(self, delivery: Delivery) -> None:
        """Nothing: it takes one message at a time, and has no threads."""

    def expect(self, queue: Queue, message_id: str, at: float) -> None:
        """Nothing: the world polls."""

    def take_back(self, delivery: Delivery, renew: Renew) -> bool:  # noqa: ARG002
        """The queue refuses the copy of a message that waits: it is hidden instead."""
        return self.settle_copied(delivery, delivery.after_an_error())
