"""The consumer of a channel's queues, from the first poll until the last message is given back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.core.giving_back import GivingBack, Phase
from celery_sqs_visibility.core.settlements import RELEASE, Lapse, Purpose
from celery_sqs_visibility.delivery.arrivals import Arrivals
from celery_sqs_visibility.delivery.awaited_payloads import AwaitedPayloads
from celery_sqs_visibility.delivery.event_log import listen
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.pump import Lane
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.delivery.receive.decoder import DecodeMessage, Decoder, ReadContent
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.receiver import OnMessage, Receiver, Receivers
from celery_sqs_visibility.delivery.receive.turn_line import TurnBuffers
from celery_sqs_visibility.delivery.supervisor import Supervised, Supervisor
from celery_sqs_visibility.delivery.watches import ForgottenMessages, RunWatch
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.health import DutyFacts, PollingFacts
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES

logger = logging.getLogger(__name__)


class QueueConsumer:
    """Consumes all queues of a channel. Outlives the channel while one of its messages runs.

    Called by the main thread: `consume`, `cancel` and `close`. Everything else may be called by any thread.

    Args:
        holder: of the deliveries, shared by the consumers of a process.
        receive: the parameters of every receive request.
        open_message: decodes a message for Celery.
        buffer: where Celery gets messages; may be shared.
        capacity: limits the messages held, shared by the consumers of a worker.
        leases: the table of the runs' leases.
        turns: the buffers of queues that take turns.
        pauses: of the queues.
        consumers: returns the consumers of this process with the same options. One of them gets the messages
            of polls that end after this consumer has stopped.
        loop_late: returns for how many seconds the reader of the buffer has been blocked.
    """

    def __init__(
        self,
        holder: DeliveryHolder,
        receive: ReceiveOptions,
        open_message: DecodeMessage,
        buffer: Buffer,
        capacity: Capacity,
        leases: LeaseTable | None = None,
        turns: TurnBuffers | None = None,
        pauses: Pauses | None = None,
        consumers: Callable[[], Collection[QueueConsumer]] = tuple,
        loop_late: Callable[[float], float] = lambda _now: 0.0,
    ) -> None:
        holder.give_leases(leases)
        if turns is not None:
            turns.attach(buffer, capacity.slots)
        self.holder, self.options, self.redrive = holder, holder.options, holder.redrive
        self.capacity = capacity
        self.loop_late = loop_late
        self._pump, self._now = holder.pump, holder.pump.now  # the pump's lock guards capacity and turns
        self._turns = turns
        self._receive = receive
        # Only commands pause queues. A queue that was just created has no tag.
        self._reads_tags = pauses is not None and self.options.remote_control
        self._pauses = pauses or Pauses(holder.pump.clock)
        self._consumers = consumers
        self._buffer = buffer
        self._others: dict[str, DecodeMessage] = {}
        self._receivers = Receivers()
        self._state = GivingBack()
        self._supervisor = Supervisor(self._supervised, holder.pump)
        self._arrivals, self._awaited = self._new_arrivals(open_message)
        self._lanes: list[Lane[Any]] = [*holder.lanes, *([self._awaited.lane] if self._awaited else [])]
        self._forgotten = ForgottenMessages(holder.all, capacity)
        runs = RunWatch(partial(holder.of, self), holder)
        parts: tuple[Supervised | None, ...] = holder.pump, leases, self._awaited, runs, self._forgotten
        self._parts = [each for each in parts if each is not None]

    def held(self) -> list[Delivery]:
        """The deliveries that this consumer holds, in the order of arrival."""
        return self.holder.of(self)

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until this consumer holds nothing. Returns whether that is so."""
        return self.holder.wait_until_empty(self, timeout)

    def consume(self, queue: Queue, on_message: OnMessage, open_message: DecodeMessage | None = None) -> None:
        """Start to poll the queue. `on_message` gets the payloads, on the thread that reads the buffer.

        `open_message` decodes its messages if `on_message` is not Celery's.
        """
        self._start()
        # Needed before the first message: it determines which attempt is the last.
        self.redrive.get(queue, self._now())
        self.redrive.find_dead_letter_queue(queue)
        receiver = Receiver(
            queue,
            self.capacity,
            self.options.for_queue(queue.name),
            self._receive,
            self._arrived,
            self._pump,
            self._after_last_poll,
            self._pauses,
            self._after_poll,
            reads_tag=self._reads_tags and queue.origin != "created",
        )
        if self._turns is not None:
            with self._pump.lock:
                self._turns.turns.add_queue(queue.name)
        self._state.consume_queue(queue.name)
        if open_message is None:
            self._others.pop(queue.name, None)
        else:
            self._others[queue.name] = open_message
        self._receivers.add(receiver, on_message)
        self._warn_near_quota(queue)
        receiver.start()

    def cancel(self, queue_name: str) -> None:
        """Stop polling the queue. Its buffered messages are given back when its last poll has ended."""
        if (receiver := self._receivers.get(queue_name)) is not None:
            receiver.stop()

    def consumed(self) -> list[str]:
        """The names of the queues that are consumed, including paused ones."""
        return self._receivers.consumed()

    def notice_pause(self, queue_name: str) -> None:
        """Stop or resume polling a queue that was just paused or resumed. Makes no request."""
        if (receiver := self._receivers.get(queue_name)) is not None:
            receiver.wake()

    def abandon(self, queue_name: str) -> None:
        """Drop the messages of a queue and finish their settlements: after `cancel`, before it is deleted."""
        self._state.delete(queue_name)
        self._take_buffered(queue_name)
        for delivery in self.held():
            if delivery.queue.name == queue_name:
                delivery.settle(Lapse())
        self._flush()

    def stop_polling(self) -> None:
        """Stop polling all queues, and hand nothing more to Celery."""
        self._state.stop()
        for receiver in self._receivers.all():
            receiver.stop()

    def wait_for_polls(self, until: float) -> bool:
        """Wait for polls in flight until that instant, after `stop_polling`. Returns whether all ended."""
        return self._receivers.wait_for_polls(until)

    def polling_facts(self, now: float) -> tuple[PollingFacts, ...]:
        """The polling state of each consumed queue."""
        return tuple(each.facts(now) for each in self._receivers.all() if not each.stopping)

    def duty_facts(self, now: float) -> tuple[DutyFacts, ...]:
        """The state of the supervisor and of the lanes that don't poll."""
        batches = [DutyFacts(each.duty, each.late(now)) for each in self._lanes]
        return DutyFacts("replaces threads that hang", self._supervisor.late(now)), *batches

    @property
    def forgotten(self) -> float:
        """For how many seconds this consumer has held only forgotten messages."""
        return self._forgotten.seconds if self._supervisor.running else 0.0

    def end_by(self, until: float, polls_until: float) -> None:
        """Note that the worker ends at `until`, and waits for polls until `polls_until`, both monotonic."""
        self._state.end_by(until, polls_until, self._now())

    def give_back_unstarted(self, queue_name: str | None = None) -> list[Delivery]:
        """Release and return deliveries that have not started, after `stop_polling` or of a paused queue.

        May take seconds; other queues go on meanwhile.

        A message that is released while a long poll of this consumer is in flight comes straight back, which
        costs an attempt. So one message of each polled queue is released first: it ends the long poll, and is
        then released again with the others. If another worker receives it, the others are released after
        `OWN_POLL_SECONDS`. Meanwhile runs may begin, and the pause may end.
        """
        state, now = self._state, self._now
        if queue_name is None:
            self.holder.copies.interrupt(self, Purpose.RECORDS)
        else:
            state.pause(queue_name)
        # Buffered messages are given back even if the pause ends now.
        buffered = self._take_buffered(queue_name) if self._gives_back(queue_name) else []
        unstarted = [*self._unstarted(queue_name), *buffered]
        until = state.own_poll_ends(now())
        released = self._give_back(state.first(unstarted, self._receivers.polled()))
        if released:
            self._receivers.wait_for_polls(until, queue_name)
        released += self._give_back([*self._unstarted(queue_name), *buffered])
        self._finish_settling(state.own_poll_ends(now()))
        return released

    def hand_back(self) -> list[Delivery]:
        """Release running messages, finish settlements, and return the orphans, after `give_back_unstarted`.

        Does not wait for copies that could not be sent yet: their originals are released, too.
        """
        self.holder.copies.interrupt(self, Purpose.RENEWAL, Purpose.RECORDS)
        orphans = self._give_back(self.held())
        self._flush()
        self.holder.flush_removals()
        return orphans

    def close(self) -> None:
        """Stop polling, give back deliveries that have not started, and finish settlements, in bounded time.

        A running delivery is still extended, and can be settled, until its run ends.
        """
        self.stop_polling()
        self._receivers.wait_for_polls(self._state.polls_end(self._now()))
        self.give_back_unstarted()
        self._flush()
        self.holder.flush_removals()
        self._state.close()
        self._stop_lanes_if_done()

    def set_prefetch_count(self, count: int) -> None:
        """Apply Celery's new prefetch count; 0 is unlimited."""
        with self._pump.lock:
            self.capacity.prefetch_count = count
            self.capacity.serve(self._now())
        if self._turns is not None:
            self._turns.wake()

    def rest(self, delivery: Delivery, wait: Wait) -> None:
        with self._pump.lock:
            self.capacity.rest(delivery, wait)
        self.free(delivery)

    def resume(self, delivery: Delivery) -> None:
        with self._pump.lock:
            self.capacity.resume(delivery)

    def free(self, delivery: Delivery) -> None:
        if self.capacity.waiters:
            self._serve(delivery.queue.name)
        if self._turns is not None:
            self._turns.wake()
        if self._state.phase is Phase.CLOSED:
            self._stop_lanes_if_done()

    def _serve(self, queue_name: str) -> None:
        """Let queues use capacity that was freed, or that this queue no longer waits for."""
        with self._pump.lock:
            self.capacity.serve(self._now(), queue_name)

    def replace_stuck(self, now: float) -> None:
        """Use capacity that became free without a call, for example because the pool has grown."""
        self.holder.look(self.capacity, now)
        if self._turns is not None:
            self._turns.wake()

    def _after_last_poll(self, queue: Queue) -> None:
        """Give back the buffered messages of a queue, unless it is consumed again.

        While the consumer itself ends, its shutdown gives back all messages instead.
        """
        if self._state.phase is Phase.CONSUMING and queue.name not in self._receivers.consumed():
            self._release_buffered(queue)

    def _release_buffered(self, queue: Queue) -> None:
        for delivery in self._take_buffered(queue.name):
            delivery.settle(RELEASE)

    def _take_buffered(self, queue_name: str | None = None) -> list[Delivery]:
        """Take this consumer's deliveries out of the buffer, of one queue or of all."""
        taken = self._buffer.take(
            lambda one: one.delivery.consumer is self and queue_name in {None, one.delivery.queue.name}
        )
        return [one.delivery for one in taken]

    def _unstarted(self, queue_name: str | None) -> list[Delivery]:
        unstarted = self._state.unstarted(self.held(), queue_name)
        # Checked last: a message that arrives after the end of the pause must run.
        return unstarted if self._gives_back(queue_name) else []

    def _gives_back(self, queue_name: str | None) -> bool:
        """Whether messages of this queue are to be given back: it is paused, or all queues end (`None`)."""
        return queue_name is None or self._pauses.get(queue_name) is not None

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release deliveries. Returns those that were still held."""
        deliveries = list(deliveries)
        self._state.note(deliveries)  # first: a poll of this consumer may receive one of them at once
        released = [delivery for delivery in deliveries if delivery.settle(RELEASE)]
        if released:
            self._state.note_released(self._now())
        return released

    def _give_back_late(self, delivery: Delivery) -> None:
        """Give back a delivery that was received after the stop or during a pause. A thread that polls."""
        queue = delivery.queue.name
        pause, wait = self._pauses.get(queue), self.options.for_queue(queue).wait_time_seconds
        paused_at = None if pause is None else pause.began
        delivery.settle(self._state.late(delivery, paused_at, wait, self._now()))

    def _flush(self) -> None:
        """Finish settlements in flight, in bounded time.

        Also waits for polls in flight: they receive messages that were released meanwhile, and release them
        again.
        """
        until = self._state.flush_ends(self._now())
        finished = self._finish_settling(until)
        if any(receiver.stopping for receiver in self._receivers.all()):
            self._receivers.wait_for_polls(min(until, self._state.own_polls_end()))
        if not (self._finish_settling(until) and finished):
            logger.warning("not everything could be settled in time; those messages come back by themselves")

    def _finish_settling(self, until: float) -> bool:
        self.holder.copies.flush(max(0.0, until - self._now()))
        resumed = self.holder.wait_for_extensions(max(0.0, until - self._now()))
        return self.holder.settler.flush(max(0.0, until - self._now())) and resumed

    def _new_arrivals(self, open_message: DecodeMessage) -> tuple[Arrivals, AwaitedPayloads | None]:
        """Make the arrivals and, if there is a bucket, the part that fetches their payloads."""
        holder, capacity, store = self.holder, self.capacity, self.holder.store
        stopped_at = self._supervisor.stopped_at
        decoder = Decoder(open_message, holder, self._pump.clock, self, stopped_at, self._others)
        awaited = None
        if store is not None:
            awaited = AwaitedPayloads(store.objects, decoder.content, capacity, self._fetched, self._pump)
        arrivals = Arrivals(
            decoder,
            holder,
            capacity,
            self._receivers,
            self._give_back_late,
            self._state,
            awaited.submit if awaited else None,
            self._serve if self._turns is not None else None,
        )
        return arrivals, awaited

    def _start(self) -> None:
        listen()
        with self._pump.lock:
            self._state.consume()
        if self._supervisor.start():
            for lane in self._lanes:
                lane.start()

    def _stop_lanes_if_done(self) -> None:
        """Stop the lanes if the consumer is closed and holds nothing."""
        if self._state.phase is not Phase.CLOSED or self.holder.holds_of(self):
            return
        with self._pump.lock:
            if self._state.phase is not Phase.CLOSED or not self._supervisor.running:
                return
            self._supervisor.running = False
        for lane in (self._supervisor.lane, *self._lanes):
            lane.stop()

    def _supervised(self) -> list[Supervised]:
        return [*self._receivers.all(), self, *self._parts]

    def _arrived(
        self, queue: Queue, messages: Sequence[ReceivedMessage], called: float, returned: float
    ) -> None:
        """Take in the messages of a poll. A thread that polls.

        A poll of an embedded worker that has ended may stay open for 20 s. Its messages go to the next worker
        of the process: if they were given back, another such poll might receive and hide them.
        """
        if (other := self._consumer_instead(queue)) is not None:
            other._arrived(queue, messages, called, returned)  # noqa: SLF001 - of this class
            return
        if messages:
            self._put(queue, self._arrivals.decode(queue, messages, called, returned))

    def _after_poll(self, queue: Queue, returned: float) -> None:
        """Refresh what is known about the queue after a poll. A thread that polls."""
        self.redrive.get(queue, returned)  # rarely makes a request, and nobody waits for it
        self._warn_near_quota(queue)

    def _warn_near_quota(self, queue: Queue) -> None:
        """Warn if the queue's messages in flight are close to SQS's quota. Makes no request."""
        in_flight = self.redrive.pop_many_in_flight(queue)
        receiver = self._receivers.get(queue.name)
        if in_flight is None or receiver is None:
            return
        log_safely(
            logger.warning,
            "queue %r has %s messages in flight: beyond about %s SQS hands out none, without an error, and "
            "tasks wait. This worker holds %s of them, and has hidden %s or more for a retry or an ETA",
            queue.name,
            in_flight,
            IN_FLIGHT_MESSAGES,
            sum(delivery.queue is queue for delivery in self.held()),
            receiver.hidden(self._now()),
        )

    def _consumer_instead(self, queue: Queue) -> QueueConsumer | None:
        """Another consumer that hands the queue's messages to Celery, if this one no longer does."""
        if self._dispatches(queue.name):
            return None
        return next((each for each in self._consumers() if each._dispatches(queue.name)), None)  # noqa: SLF001

    def _dispatches(self, queue_name: str) -> bool:
        return self._state.phase is Phase.CONSUMING and self._receivers.on_message(queue_name) is not None

    def _fetched(self, delivery: Delivery, content: ReadContent, message: ReceivedMessage) -> None:
        """Take in a message whose payload has arrived. A thread that fetches."""
        self._put(delivery.queue, self._arrivals.fetched(delivery, content, message))

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> bool:
        """If this consumer no longer hands the queue's messages to Celery, another one may."""
        if (other := self._consumer_instead(delivery.queue)) is not None:
            delivery.consumer = other
            self._stop_lanes_if_done()
            return other.take_back(delivery, payload)
        messages = self._arrivals.take_back(delivery, payload)
        if messages is not None:
            self._put(delivery.queue, messages)
        return messages is not None

    def expect(self, queue: Queue, message_id: str, at: float) -> None:
        """If this consumer no longer polls the queue, another one may."""
        if (other := self._consumer_instead(queue)) is not None:
            other.expect(queue, message_id, at)
        else:
            self._receivers.expect(queue.name, message_id, at)

    def _put(self, queue: Queue, arrived: Sequence[BufferedMessage]) -> None:
        """Put messages into the buffer for Celery, or release them if their queue was paused meanwhile."""
        try:
            for one in arrived:
                one.delivery.attended = True
            self._buffer.put(arrived)
        except Exception:
            for one in arrived:
                one.delivery.attended = False  # if one cannot be settled now, it is given back later
            for one in self._buffer.take(lambda each: each in arrived):
                one.delivery.settle(Lapse())
            raise
        if self._pauses.get(queue.name) is not None:
            self._release_buffered(queue)
        self.holder.extend_in_time()  # last: a lapsed delivery may have just got a newer receipt
