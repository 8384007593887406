"""Consumes a channel's queues, and gives back at the end what does not run."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.arrivals import Arrivals, OnMessage
from celery_sqs_visibility.delivery.event_log import listen
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.model import Delivery, Hide, Lapse, Release, Renew
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.delivery.receive.decoder import DecodeMessage, Decoder
from celery_sqs_visibility.delivery.receive.receiver import Receiver
from celery_sqs_visibility.delivery.supervisor import Supervised, Supervisor
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.polling import PollSchedule
from celery_sqs_visibility.policy.prefetch import Slots

logger = logging.getLogger(__name__)

#: How long closing waits for polls in flight, unless `end_by` says otherwise.
POLLS_IN_FLIGHT_SECONDS: Final = 4.5

#: The longest flush.
FLUSH_SECONDS: Final = 5.0

#: A message that is released under a poll in flight comes back with that poll within this time.
OWN_POLL_SECONDS: Final = 1.5

#: How long handing back may take after the time that a shutdown has is over.
HAND_BACK_SECONDS: Final = 1.5

#: An instant that has passed: do not wait.
NO_WAIT: Final = -math.inf


class QueueConsumer(DeliveryHolder):
    """Consumes all queues of a channel; outlives the channel as long as something it received runs.

    `consume`, `cancel` and `close` belong to the main thread, the rest to any.
    The consumers of a process share `redeliveries`, and may share `buffer`, from which Celery gets messages.
    Outside a worker `slots`, which returns those of its pool, is `None`, and `worker_name` is empty.
    """

    def __init__(
        self,
        options: Options,
        receive: ReceiveOptions,
        open_message: DecodeMessage,
        redrive: RedriveBook,
        redeliveries: RedeliveryIndex,
        buffer: Buffer,
        clock: Clock = SYSTEM_CLOCK,
        slots: Callable[[], Slots] | None = None,
        leases: LeaseTable | None = None,
        worker_name: str = "",
    ) -> None:
        super().__init__(options, redrive, redeliveries, clock, slots, leases, worker_name)
        self._receive = receive
        self._buffer = buffer
        # Written by the main thread only, each time in one step: signal handlers read them.
        self._receivers: dict[str, tuple[Receiver, OnMessage]] = {}  # the latest of each queue
        self._replaced: list[Receiver] = []  # stopped ones, whose polls may be in flight
        decoder = Decoder(open_message, options.visibility_timeout, clock, self)
        self._arrivals = Arrivals(
            decoder, self, self._on_message, self._give_back_late, lambda: self._dispatching
        )
        self._batch_threads = self._heartbeat.batch_threads, self._settler.batch_threads
        self._supervisor = Supervisor(self._supervised, clock)
        # Guards _running, _closed. Reentrant: Celery's cold shutdown settles in a signal handler.
        self._lock = threading.RLock()
        self._running = False  # whether there are threads
        self._closed = False  # whether they end when nothing is held any more
        self._dispatching = True  # whether Celery gets any messages
        self._abandoned: set[str] = set()  # queues that are being deleted
        self._ends = math.inf  # the monotonic instant at which a shutdown's time is over
        self._polls_until: float | None = None  # the one until which closing waits for polls in flight
        self._ending_since: float | None = None  # the one at which that shutdown began
        self._released_at = -math.inf  # the one at which a delivery was last given back
        self._given_back: set[tuple[str, str]] = set()  # queues and message ids

    def consume(self, queue: Queue, on_message: OnMessage) -> None:
        """Poll the queue from now on; its payloads go to `on_message`, on the buffer's thread."""
        self._start()
        # Known before the first message is, since it says which attempt is the last.
        self.redrive.get(queue, self._clock.monotonic())
        self.redrive.find_dead_letter_queue(queue)
        options = self.options
        receiver = Receiver(
            queue,
            self.capacity,
            PollSchedule(options.polling_interval, options.polling_interval_max),
            options.wait_time_seconds,
            self._receive,
            self._clock,
            self._arrived,
            self._after_last_poll,
        )
        self.cancel(queue.name)
        self._abandoned.discard(queue.name)
        replaced = [*self._replaced, self._receiver(queue.name)]
        self._replaced = [each for each in replaced if each and not each.wait_for_polls(NO_WAIT)]
        self._receivers[queue.name] = receiver, on_message
        receiver.start()

    def cancel(self, queue_name: str) -> None:
        """Poll the queue no more; what is buffered is given back when its last poll is over.

        Celery's cold shutdown calls it in a signal handler: it takes no lock that the main thread may hold.
        """
        if (receiver := self._receiver(queue_name)) is not None:
            receiver.stop()
            self.capacity.wake()

    def abandon(self, queue_name: str) -> None:
        """After `cancel`, before the queue is deleted: drop its messages, and finish what is settled."""
        self._abandoned.add(queue_name)
        self._take_buffered(queue_name)
        for delivery in self.ledger.all():
            if delivery.queue.name == queue_name:
                delivery.settle(Lapse())
        self._flush()

    def stop_polling(self) -> None:
        """Poll none of the queues, and dispatch nothing to Celery. In a signal handler too, as `cancel`."""
        self._dispatching = False
        for receiver in self._all_receivers():
            receiver.stop()
        self.capacity.wake()

    def wait_for_polls(self, until: float) -> bool:
        """After `stop_polling`: wait for polls in flight until that instant; whether all have ended."""
        return all(receiver.wait_for_polls(until) for receiver in self._all_receivers())

    def end_by(self, until: float, polls_until: float) -> None:
        """The worker ends at `until`, and waits for polls until `polls_until`, both monotonic instants."""
        if self._ending_since is None:
            self._ending_since = self._clock.monotonic()
        self._ends, self._polls_until = until, polls_until

    def give_back_unstarted(self) -> list[Delivery]:
        """After `stop_polling`: release what does not run, and return it.

        A message released under one's own long poll comes straight back, at the price of an attempt. So one
        message of each queue that is polled goes first: it ends the long poll, and is released again, with
        the others; or after `OWN_POLL_SECONDS`, when another worker has received it.
        """
        buffered = [one.delivery for one in self._take_buffered()]
        # The ledger lacks buffered deliveries that another consumer has superseded.
        unstarted = [*self.ledger.unstarted(), *buffered]
        polled = {r.queue.name for r in self._all_receivers() if not r.wait_for_polls(NO_WAIT)}
        first = {d.queue.name: d for d in reversed(unstarted) if d.queue.name in polled}
        now = self._clock.monotonic()
        released = self._give_back(first.values())
        if released:
            self.wait_for_polls(min(now + OWN_POLL_SECONDS, self._ends))
        released += self._give_back([*unstarted, *self.ledger.unstarted()])
        self._finish_settling(min(self._clock.monotonic() + OWN_POLL_SECONDS, self._ends))
        return released

    def hand_back(self) -> list[Delivery]:
        """After `give_back_unstarted`: release what runs, finish what is settled, and return the orphans."""
        orphans = self._give_back(self.ledger.all())
        self._flush()
        return orphans

    def close(self) -> None:
        """Stop polling, give back what does not run, finish what is under way; bounded in time.

        What still runs stays extended, and can be settled, until it ends.
        """
        self.stop_polling()
        until = self._polls_until
        self.wait_for_polls(self._clock.monotonic() + POLLS_IN_FLIGHT_SECONDS if until is None else until)
        self.give_back_unstarted()
        self._flush()
        self._closed = True
        self._released()

    def _flush(self) -> None:
        """Finish what is being settled, in bounded time.

        A message released under one's own long poll is received by it at once, and is released again.
        """
        until = min(self._clock.monotonic() + FLUSH_SECONDS, self._ends + HAND_BACK_SECONDS)
        finished = self._finish_settling(until)
        if any(receiver.stopping for receiver in self._all_receivers()):
            self.wait_for_polls(min(until, self._released_at + OWN_POLL_SECONDS))
        if not (self._finish_settling(until) and finished):
            logger.warning("not everything could be settled in time; those messages come back by themselves")

    def _finish_settling(self, until: float) -> bool:
        resumed = self.ledger.wait_for_extensions(max(0.0, until - self._clock.monotonic()))
        return self._settler.flush(max(0.0, until - self._clock.monotonic())) and resumed

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release those that are still held, and return these."""
        deliveries = list(deliveries)
        # Before a poll of our own may bring one of them back.
        self._given_back.update((d.queue.name, d.facts.message_id) for d in deliveries)
        released = [delivery for delivery in deliveries if delivery.settle(Release())]
        if released:
            self._released_at = self._clock.monotonic()
        return released

    def _give_back_late(self, delivery: Delivery) -> None:
        """Give back what a poll brought after the stop. A receiver's thread.

        Workers that are told to end together have polls in flight together. Released at once, a message would
        go from one to the next, and use up its attempts. So a message is hidden until those polls are over,
        unless it was never received before, or released by this consumer.
        """
        if delivery.queue.name in self._abandoned:
            delivery.settle(Lapse())  # without a request: its queue is being deleted
            return
        seconds = 0
        if self._ending_since is not None and delivery.facts.receive_count > 1:
            polls_over = self._ending_since + self.options.wait_time_seconds
            seconds = max(0, math.ceil(polls_over - self._clock.monotonic()))
        own = (delivery.queue.name, delivery.facts.message_id) in self._given_back
        delivery.settle(Hide(seconds) if seconds and not own else Release())

    def _after_last_poll(self, queue: Queue) -> None:
        """A receiver has ended: give back what is buffered, unless the queue is consumed again."""
        if self._on_message(queue.name) is None:
            for buffered in self._take_buffered(queue.name):
                buffered.delivery.settle(Release())

    def _take_buffered(self, queue_name: str | None = None) -> list[BufferedMessage]:
        """Take one queue's messages out of the buffer, or all; others' stay, which may share it."""
        return self._buffer.take(
            lambda one: (
                one.delivery.holder is self and (queue_name is None or one.delivery.queue.name == queue_name)
            )
        )

    def _start(self) -> None:
        with self._lock:
            self._closed, self._dispatching = False, True
            if not self._running:
                listen()
                for batch_threads in self._batch_threads:
                    batch_threads.start()
                self._supervisor.start()
                self._running = True

    def _released(self) -> None:
        """End the threads, once this is closed and nothing is held."""
        if not self._closed or len(self.ledger):
            return
        with self._lock:
            if not self._running or not self._closed:
                return
            self._running = False
            self._supervisor.stop()
        for batch_threads in self._batch_threads:
            batch_threads.stop()

    def _supervised(self) -> list[Supervised]:
        table = self._leases
        return [*self._all_receivers(), self.capacity, *self._batch_threads, *([table] if table else [])]

    def _receiver(self, queue_name: str) -> Receiver | None:
        """The queue's latest receiver, which may be stopped."""
        receiver, _ = self._receivers.get(queue_name, (None, None))
        return receiver

    def _all_receivers(self) -> list[Receiver]:
        return [*self._replaced, *(receiver for receiver, _ in list(self._receivers.values()))]

    def _on_message(self, queue_name: str) -> OnMessage | None:
        """The queue's callback; `None` if it is not consumed any more."""
        receiver, on_message = self._receivers.get(queue_name, (None, None))
        return None if receiver is None or receiver.stopping else on_message

    def _arrived(
        self, queue: Queue, messages: Sequence[ReceivedMessage], called: float, returned: float
    ) -> None:
        """A poll brought these. A receiver's thread."""
        self._buffer.put(self._arrivals.decode(queue, messages, called, returned))
        self._heartbeat.notice()  # not before: a delivery that has lapsed may have been superseded just now
        self.redrive.get(queue, returned)  # seldom a request, and nobody waits for it

    def _take_back(self, delivery: Delivery, renew: Renew) -> None:
        self._buffer.put(self._arrivals.take_back(delivery, renew))
        self._heartbeat.notice()

    def _expect(self, queue: Queue, message_id: str, at: float) -> None:
        if (receiver := self._receiver(queue.name)) is not None:
            receiver.expect(message_id, at)
