"""What a process receives from one broker: its consumers, the holder of their messages, and shared parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.process_lock import shared_property
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.holder import SETTLE_WINDOW_SECONDS, DeliveryHolder
from celery_sqs_visibility.delivery.lease_table import lease_table
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.decoder import DecodeMessage
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.turn_line import TurnBuffers
from celery_sqs_visibility.delivery.threads import snapshot
from celery_sqs_visibility.policy.health import BrakeFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import PREFETCH_SECONDS, Slots


class Receiving:
    """The receiving part of a broker context, which refers to it, but not the other way round.

    Attributes:
        slots: returns the slots of the worker's pool; set by a bootstep before the worker consumes.
        loop_late: returns for how long the worker's event loop has been blocked; set like `slots`.
        turns: the turns of the worker's queues, if these have an order or a maximum.
        pauses: the pauses of the worker's queues.
        paused_tasks: the pauses of tasks.
        brakes: returns the brakes of the worker's tasks; set by a bootstep.
        queue_consumers: the consumers in use, and those of closed channels whose tasks still run.
        worker_queue_consumers: the worker's own; the others belong to consumers inside its tasks.
    """

    def __init__(
        self,
        options: Options,
        receive: ReceiveOptions,
        redrive: RedriveBook,
        pump: Pump,
        outgoing: OutgoingMessages,
    ) -> None:
        self._options = options
        self._receive = receive
        self._redrive = redrive
        self._pump = pump
        self._outgoing = outgoing
        self.turns: TurnBuffers | None = None
        if options.has_turns:
            self.turns = TurnBuffers(Turns(options.queue_order, options.for_queue), pump.lock)
        self.pauses, self.paused_tasks = Pauses(), Pauses()
        self.slots: Callable[[], Slots] | None = None
        self.loop_late: Callable[[float, float], float] | None = None
        self.brakes: Callable[[], list[BrakeFacts]] = list
        self._capacity: Capacity | None = None
        self.queue_consumers: WeakSet[QueueConsumer] = WeakSet()
        self.worker_queue_consumers: WeakSet[QueueConsumer] = WeakSet()

    @shared_property
    def holder(self) -> DeliveryHolder:
        """Holder of all messages that this process has received."""
        return DeliveryHolder(self._options, self._redrive, self._pump, self._outgoing, SETTLE_WINDOW_SECONDS)

    def _worker_capacity(self) -> Capacity:
        """The capacity of all consumers of the worker, so that runs of earlier connections count.

        Another worker that is embedded later gets a capacity of its own.
        """
        if self._capacity is None or self._capacity.slots is not self.slots:
            turns = None if self.turns is None else self.turns.turns
            self._capacity = Capacity(PREFETCH_SECONDS, self.slots, turns)
        return self._capacity

    def new_queue_consumer(
        self,
        buffer: Buffer,
        decode: DecodeMessage,
        consumers: Callable[[], list[QueueConsumer]],
        *,
        for_worker: bool,
    ) -> QueueConsumer:
        """Make a consumer, either a worker's or one without slots."""
        capacity = self._worker_capacity() if for_worker else Capacity(PREFETCH_SECONDS)
        more: dict[str, Any] = {}
        if for_worker:
            more = {"turns": self.turns, "pauses": self.pauses}
            if self.loop_late is not None:
                # Must not refer to the consumer, which would keep its context through the capacity.
                more["loop_late"] = capacity.loop_late = partial(buffer.late, self.loop_late)
        queue_consumer = QueueConsumer(
            self.holder, self._receive, decode, buffer, capacity, lease_table(), consumers=consumers, **more
        )
        self.queue_consumers.add(queue_consumer)
        if for_worker:
            self.worker_queue_consumers.add(queue_consumer)
        return queue_consumer

    def notice_pause(self, queue: str) -> None:
        """Tell the worker that a pause or rest of a queue has begun or ended. Any thread."""
        for queue_consumer in snapshot(self.worker_queue_consumers):
            queue_consumer.notice_pause(queue)

    def abandon(self, queue: str) -> None:
        """Drop the messages of a queue that is about to be deleted."""
        for queue_consumer in list(self.queue_consumers):
            queue_consumer.abandon(queue)
