"""Consumer of a channel's queues: their receivers, what happens to their messages, and its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from celery_sqs_visibility.aws.object_store import ObjectStore
from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.core.giving_back import GivingBack, Phase
from celery_sqs_visibility.core.settlements import RELEASE, Lapse
from celery_sqs_visibility.delivery.arrivals import Arrivals
from celery_sqs_visibility.delivery.awaited_payloads import AwaitedPayloads
from celery_sqs_visibility.delivery.event_log import listen
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.delivery.receive.decoder import DecodeMessage, Decoder, ReadContent
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.receiver import OnMessage, Receiver, Receivers
from celery_sqs_visibility.delivery.receive.turn_line import TurnBuffers
from celery_sqs_visibility.delivery.shutdown import Shutdown
from celery_sqs_visibility.delivery.supervisor import Supervised, Supervisor
from celery_sqs_visibility.delivery.watches import ForgottenMessages, RunWatch
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.health import DutyFacts, PollingFacts
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES

logger = logging.getLogger(__name__)


class QueueConsumer:
    """Consumes all queues of a channel. Outlives the channel while a message that it received runs.

    The main thread calls `consume`, `cancel` and `close`, any thread the rest.

    Args:
        holder: of the deliveries, shared by the consumers of a process. receive: what every receive asks for.
        open_message: decodes a message for Celery. buffer: from which Celery gets messages; may be shared.
        pump: its threads make the requests. capacity: how many messages it may hold, shared by the consumers
        of a worker. clock: wall time and the monotonic clock. leases: makes the leases of runs. payloads: the
        bucket of the option `payload_store`. turns: the buffers whose queues take turns. pauses: queues that
        are not polled for now. consumers: returns the consumers of this process, with the same options, to
        which this one's last polls
            may give their messages.
        loop_late: returns for how long the reader of the buffer has not come round, given when it last did
        and
            the present instant.
    """

    def __init__(
        self,
        holder: DeliveryHolder,
        receive: ReceiveOptions,
        open_message: DecodeMessage,
        buffer: Buffer,
        pump: Pump,
        capacity: Capacity,
        clock: Clock = SYSTEM_CLOCK,
        leases: LeaseTable | None = None,
        payloads: ObjectStore | None = None,
        turns: TurnBuffers | None = None,
        pauses: Pauses | None = None,
        consumers: Callable[[], Collection[QueueConsumer]] = tuple,
        loop_late: Callable[[float, float], float] | None = None,
    ) -> None:
        self.holder = holder
        holder.give_leases(leases)
        self.options = holder.options
        self.redrive = holder.redrive
        self._pump = pump  # whose lock guards the capacity and the turns
        self.capacity = capacity
        self._clock = clock
        self._turns = turns
        if turns is not None:
            turns.attach(buffer, capacity.slots)
        self._receive = receive
        # Where commands pause queues. A queue that was just created has no tag.
        self._reads_tags = pauses is not None and self.options.remote_control
        self._pauses = pauses or Pauses(clock)
        self._consumers = consumers
        # Without a reference to this consumer, which would keep its context through the capacity.
        self._loop_late = capacity.loop_late = partial(_late, loop_late, buffer) if loop_late else None
        self._buffer = buffer
        self._others: dict[str, DecodeMessage] = {}
        self._receivers = Receivers()
        self._state = GivingBack()
        self._supervisor = Supervisor(self._supervised, clock, pump)
        self._shutdown = Shutdown(
            self._state, holder, self, self._receivers, self._take_buffered, self._pauses, clock
        )
        self._arrivals, self._awaited = self._new_arrivals(open_message, payloads, pump)
        self._lanes: list[Lane[Any]] = [*holder.lanes, *([self._awaited.lane] if self._awaited else [])]
        self._forgotten = ForgottenMessages(holder.all, self.capacity)
        some = [each for each in (leases, self._awaited) if each is not None]
        runs = RunWatch(partial(holder.of, self), holder)
        self._parts = (pump, *some, runs, self._forgotten)

    def held(self) -> list[Delivery]:
        """Its deliveries that are held, in the order of arrival."""
        return self.holder.of(self)

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until it holds nothing. Returns whether it holds nothing."""
        return self.holder.wait_until_empty(self, timeout)

    def consume(self, queue: Queue, on_message: OnMessage, open_message: DecodeMessage | None = None) -> None:
        """Poll the queue from now on. Its payloads go to `on_message`, on the thread that reads the buffer.

        `open_message` decodes its messages if `on_message` is not Celery's.
        """
        self._start()
        # Needed before the first message, as it says which attempt is the last.
        self.redrive.get(queue, self._clock.monotonic())
        self.redrive.find_dead_letter_queue(queue)
        receiver = Receiver(
            queue,
            self.capacity,
            self.options.for_queue(queue.name),
            self._receive,
            self._clock,
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
        """Poll the queue no more. Its buffered messages are given back once its last poll is over."""
        if (receiver := self._receivers.get(queue_name)) is not None:
            receiver.stop()

    def consumed(self) -> list[str]:
        """The names of the queues that are consumed, including paused ones."""
        return self._receivers.consumed()

    def notice_pause(self, queue_name: str) -> None:
        """Poll the queue no more, or again, as it was paused or resumed. Makes no request."""
        if (receiver := self._receivers.get(queue_name)) is not None:
            receiver.wake()

    def abandon(self, queue_name: str) -> None:
        """Drop the messages of a queue and finish their settlements: after `cancel`, before it is deleted."""
        self._state.delete(queue_name)
        self._take_buffered(queue_name)
        for delivery in self.held():
            if delivery.queue.name == queue_name:
                delivery.settle(Lapse())
        self._shutdown.flush()

    def stop_polling(self) -> None:
        """Poll no queue any more, and dispatch nothing to Celery."""
        self._state.stop()
        for receiver in self._receivers.all():
            receiver.stop()

    def wait_for_polls(self, until: float) -> bool:
        """Wait for polls in flight until that instant, after `stop_polling`. Returns whether all ended."""
        return self._receivers.wait_for_polls(until)

    def polling_facts(self, now: float) -> tuple[PollingFacts, ...]:
        """The state of the polling of each queue that is consumed."""
        return tuple(each.facts(now) for each in self._receivers.all() if not each.stopping)

    def duty_facts(self, now: float) -> tuple[DutyFacts, ...]:
        """The state of the other duties of threads."""
        batches = [DutyFacts(each.duty, each.late(now)) for each in self._lanes]
        return DutyFacts("replaces threads that hang", self._supervisor.late(now)), *batches

    @property
    def forgotten(self) -> float:
        """For how many seconds there have been only messages that nobody will run."""
        return self._forgotten.seconds if self._supervisor.running else 0.0

    def end_by(self, until: float, polls_until: float) -> None:
        """End by the monotonic instant `until`, and wait for polls until `polls_until`."""
        self._state.end_by(until, polls_until, self._clock.monotonic())

    def give_back_unstarted(self, queue_name: str | None = None) -> list[Delivery]:
        """Release and return deliveries that do not run, after `stop_polling`, or of a paused queue.

        May take seconds. Other queues go on.
        """
        return self._shutdown.give_back_unstarted(queue_name)

    def hand_back(self) -> list[Delivery]:
        """Release runs, finish settlements, and return the orphans, after `give_back_unstarted`."""
        orphans = self._shutdown.hand_back()
        self.holder.flush_removals()
        return orphans

    def close(self) -> None:
        """Stop polling, give back deliveries that do not run, and finish settlements, in bounded time.

        A delivery that still runs is extended, and can be settled, until its run ends.
        """
        self.stop_polling()
        self._shutdown.wait_for_polls()
        self.give_back_unstarted()
        self._shutdown.flush()
        self.holder.flush_removals()
        self._state.close()
        self._let_go()

    def loop_late(self, now: float) -> float:
        return 0.0 if self._loop_late is None else self._loop_late(now)

    def set_prefetch_count(self, count: int) -> None:
        """Follow a change of Celery's prefetch count; 0 is unlimited."""
        with self._pump.lock:
            self.capacity.prefetch_count = count
            self.capacity.serve(self._clock.monotonic())
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
            self._let_go()

    def _serve(self, queue_name: str) -> None:
        """Receive others, as a message of the queue takes no place any more, or no longer waits here."""
        with self._pump.lock:
            self.capacity.serve(self._clock.monotonic(), queue_name)

    def replace_stuck(self, now: float) -> None:
        """Notice capacity that became free without a call, for example because the pool has grown."""
        self.holder.look(self.capacity, now)
        if self._turns is not None:
            self._turns.wake()

    def _after_last_poll(self, queue: Queue) -> None:
        """Give back the buffered messages of a queue, unless it is consumed again.

        If the consumer itself ends, its shutdown gives back all of them.
        """
        if self._state.phase is Phase.CONSUMING and queue.name not in self._receivers.consumed():
            self._release_buffered(queue)

    def _release_buffered(self, queue: Queue) -> None:
        for delivery in self._take_buffered(queue.name):
            delivery.settle(RELEASE)

    def _take_buffered(self, queue_name: str | None = None) -> list[Delivery]:
        """Take this consumer's deliveries out of the buffer, of one queue or all."""
        taken = self._buffer.take(
            lambda one: one.delivery.consumer is self and queue_name in {None, one.delivery.queue.name}
        )
        return [one.delivery for one in taken]

    def _new_arrivals(
        self, open_message: DecodeMessage, payloads: ObjectStore | None, pump: Pump
    ) -> tuple[Arrivals, AwaitedPayloads | None]:
        """Make the arrivals, and the payloads that some of them wait for, if there is a bucket."""
        options, clock = self.options, self._clock
        readable, stopped_at = options.readable_payloads, self._supervisor.stopped_at
        decoder = Decoder(
            open_message, options.for_queue, clock, self.holder, self, readable, stopped_at, self._others
        )
        awaited = None
        if payloads is not None:
            awaited = AwaitedPayloads(payloads, decoder.content, self.capacity, self._fetched, clock, pump)
        arrivals = Arrivals(
            decoder,
            self.holder,
            self.capacity,
            self._receivers,
            self._shutdown.give_back_late,
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

    def _let_go(self) -> None:
        """Stop the lanes, if it is closed and nothing is held."""
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

        The last poll of an embedded worker that has ended may stay open for 20 s. Its messages go to the next
        worker of the process: if one was given back, another such poll might receive and hide it.
        """
        if (other := self._consumer_instead(queue)) is not None:
            other._arrived(queue, messages, called, returned)  # noqa: SLF001 - of this class
            return
        if messages:
            self._put(queue, self._arrivals.decode(queue, messages, called, returned))

    def _after_poll(self, queue: Queue, returned: float) -> None:
        """Renew what is known of the queue, after a poll. A thread that polls."""
        self.redrive.get(queue, returned)  # rarely makes a request, and nobody waits for it
        self._warn_near_quota(queue)

    def _warn_near_quota(self, queue: Queue) -> None:
        """Warn if SQS has just said that the messages in flight come near the quota. Makes no request."""
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
            receiver.hidden(self._clock.monotonic()),
        )

    def _consumer_instead(self, queue: Queue) -> QueueConsumer | None:
        """Another consumer that hands the queue's messages to Celery, if this one no longer does."""
        if self._dispatches(queue.name):
            return None
        return next((each for each in self._consumers() if each._dispatches(queue.name)), None)  # noqa: SLF001

    def _dispatches(self, queue_name: str) -> bool:
        return self._state.phase is Phase.CONSUMING and self._receivers.on_message(queue_name) is not None

    def _fetched(self, delivery: Delivery, content: ReadContent, message: ReceivedMessage) -> None:
        """Take in a message whose payload has come. A thread that fetches."""
        self._put(delivery.queue, self._arrivals.fetched(delivery, content, message))

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> bool:
        """If this consumer no longer hands the queue's messages to Celery, another one may."""
        if (other := self._consumer_instead(delivery.queue)) is not None:
            delivery.consumer = other
            self._let_go()
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
        """Put messages into the buffer for Celery; release them if a pause of their queue has begun."""
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
        self.holder.extend_in_time()  # last: one that has lapsed may just have been received anew


def _late(late: Callable[[float, float], float], buffer: Buffer, now: float) -> float:
    return late(buffer.looped_at, now)
