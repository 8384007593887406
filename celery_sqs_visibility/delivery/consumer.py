"""Consumer of a channel's queues: their receivers, the threads for their messages, and the end of both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
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
from celery_sqs_visibility.policy.polling import PollSchedule
from celery_sqs_visibility.policy.prefetch import PREFETCH_SECONDS, Slots
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES

logger = logging.getLogger(__name__)


class QueueConsumer:
    """Consumes all queues of a channel; outlives the channel as long as a message that it received runs.

    `consume`, `cancel` and `close` belong to the main thread, the rest to any.
    The consumers of a process share `holder`, and may share `buffer`, from which Celery gets messages.
    Outside a worker `slots`, which returns those of its pool, is `None`. `payloads` is the bucket of the
    option `payload_store`. `consumers` returns the consumers of this process, with the same options, to which
    this one's last polls may give their messages. `loop_late` tells for how long the reader of the buffer has
    not come round, by when it last did and the present instant. The consumers of a worker share `capacity`.

    Attributes:
        capacity: how many messages it may hold.
    """

    def __init__(
        self,
        holder: DeliveryHolder,
        receive: ReceiveOptions,
        open_message: DecodeMessage,
        buffer: Buffer,
        pump: Pump,
        clock: Clock = SYSTEM_CLOCK,
        slots: Callable[[], Slots] | None = None,
        leases: LeaseTable | None = None,
        payloads: ObjectStore | None = None,
        turns: TurnBuffers | None = None,
        pauses: Pauses | None = None,
        consumers: Callable[[], Collection[QueueConsumer]] = tuple,
        capacity: Capacity | None = None,
        loop_late: Callable[[float, float], float] | None = None,
    ) -> None:
        self.holder = holder
        holder.give_leases(leases)
        self.options = holder.options
        self.redrive = holder.redrive
        self._pump = pump  # whose lock guards the capacity and the turns
        self.capacity = capacity or Capacity(PREFETCH_SECONDS, slots, None if turns is None else turns.turns)
        self._clock = clock
        self._turns = turns
        if turns is not None:
            turns.attach(buffer, slots)
        self._receive = receive
        self._pauses = pauses or Pauses(clock)
        self._consumers = consumers
        # Without a reference to this consumer, which would keep its context through the capacity.
        self._loop_late = self.capacity.loop_late = partial(_late, loop_late, buffer) if loop_late else None
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
        """What it brought and holds, in the order of arrival. Any thread."""
        return self.holder.of(self)

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait until it holds nothing, for `timeout` seconds; whether it holds nothing. Any thread."""
        return self.holder.wait_until_empty(self, timeout)

    def consume(self, queue: Queue, on_message: OnMessage, open_message: DecodeMessage | None = None) -> None:
        """Poll the queue from now on; its payloads go to `on_message`, on the buffer's thread.

        `open_message` decodes its messages, if `on_message` is not Celery's.
        """
        self._start()
        # Known before the first message is, since it says which attempt is the last.
        self.redrive.get(queue, self._clock.monotonic())
        self.redrive.find_dead_letter_queue(queue)
        options = self.options.for_queue(queue.name)
        receiver = Receiver(
            queue,
            self.capacity,
            PollSchedule(options.polling_interval, options.polling_interval_max),
            options.wait_time_seconds,
            replace(self._receive, visibility_timeout=options.visibility_timeout),
            self._clock,
            self._arrived,
            self._pump,
            self._after_last_poll,
            self._pauses,
            self._after_poll,
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
        """Poll the queue no more; its buffered messages are given back when its last poll is over."""
        if (receiver := self._receivers.get(queue_name)) is not None:
            receiver.stop()

    def consumed(self) -> list[str]:
        """The names of the queues that are consumed, paused ones included. Any thread."""
        return self._receivers.consumed()

    def notice_pause(self, queue_name: str) -> None:
        """The queue was paused or resumed: begin no poll, or poll. Any thread, without a request."""
        if (receiver := self._receivers.get(queue_name)) is not None:
            receiver.wake()

    def abandon(self, queue_name: str) -> None:
        """After `cancel`, before the queue is deleted: drop its messages, and finish their settlements."""
        self._state.delete(queue_name)
        self._take_buffered(queue_name)
        for delivery in self.held():
            if delivery.queue.name == queue_name:
                delivery.settle(Lapse())
        self._shutdown.flush()

    def stop_polling(self) -> None:
        """Poll none of the queues, and dispatch nothing to Celery."""
        self._state.stop()
        for receiver in self._receivers.all():
            receiver.stop()

    def wait_for_polls(self, until: float) -> bool:
        """After `stop_polling`: wait for polls in flight until that instant; whether all have ended."""
        return self._receivers.wait_for_polls(until)

    def polling_facts(self, now: float) -> tuple[PollingFacts, ...]:
        """State of the polling of each queue that is consumed. Any thread."""
        return tuple(each.facts(now) for each in self._receivers.all() if not each.stopping)

    def duty_facts(self, now: float) -> tuple[DutyFacts, ...]:
        """State of the other threads' duties. Any thread."""
        batches = [DutyFacts(each.duty, each.late(now)) for each in self._lanes]
        return DutyFacts("replaces threads that hang", self._supervisor.late(now)), *batches

    @property
    def forgotten(self) -> float:
        """Seconds for which there have been none but messages that nobody will run. Any thread."""
        return self._forgotten.seconds if self._supervisor.running else 0.0

    def end_by(self, until: float, polls_until: float) -> None:
        """The worker ends at `until`, and waits for polls until `polls_until`, both monotonic instants."""
        self._state.end_by(until, polls_until, self._clock.monotonic())

    def give_back_unstarted(self, queue_name: str | None = None) -> list[Delivery]:
        """After `stop_polling`, or a pause of that queue: release and return deliveries that do not run.

        Takes seconds, for which other queues go on.
        """
        return self._shutdown.give_back_unstarted(queue_name)

    def hand_back(self) -> list[Delivery]:
        """After `give_back_unstarted`: release runs, finish settlements, and return the orphans."""
        orphans = self._shutdown.hand_back()
        self.holder.flush_removals()
        return orphans

    def close(self) -> None:
        """Stop polling, give back deliveries that do not run, finish settlements; bounded in time.

        A delivery that still runs stays extended, and can be settled, until its run ends.
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
        """Celery's has changed; 0 is unlimited. Any thread."""
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
        """A message of the queue takes no place any more, or waits here no longer: others may be received."""
        with self._pump.lock:
            self.capacity.serve(self._clock.monotonic(), queue_name)

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Supervised`: notices what became free unheard: the pool has grown, for example."""
        self.holder.look(self.capacity, now)
        if self._turns is not None:
            self._turns.wake()

    def _after_last_poll(self, queue: Queue) -> None:
        """A receiver has ended: give back its queue's buffered messages, unless that is consumed again.

        Where the consumer itself ends, its shutdown gives back all of them.
        """
        if self._state.phase is Phase.CONSUMING and queue.name not in self._receivers.consumed():
            self._release_buffered(queue)

    def _release_buffered(self, queue: Queue) -> None:
        for delivery in self._take_buffered(queue.name):
            delivery.settle(RELEASE)

    def _take_buffered(self, queue_name: str | None = None) -> list[Delivery]:
        """Take one queue's deliveries out of the buffer, or all; others' stay, which may share it."""
        taken = self._buffer.take(
            lambda one: one.delivery.consumer is self and queue_name in {None, one.delivery.queue.name}
        )
        return [one.delivery for one in taken]

    def _new_arrivals(
        self, open_message: DecodeMessage, payloads: ObjectStore | None, pump: Pump
    ) -> tuple[Arrivals, AwaitedPayloads | None]:
        """The arrivals, and the payloads that some of them wait for, if there is a bucket."""
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
        """End the lanes once it is closed and nothing is held."""
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
        """A poll brought these messages, or none of those that are hidden. A thread that polls.

        The last poll of an embedded worker that has ended may be open for 20 s. Its messages go to the next
        worker of the process: given back, a message might be received by another such poll, and be hidden.
        """
        if (other := self._consumer_instead(queue)) is not None:
            other._arrived(queue, messages, called, returned)  # noqa: SLF001 - of this class
            return
        if messages:
            self._put(queue, self._arrivals.decode(queue, messages, called, returned))

    def _after_poll(self, queue: Queue, returned: float) -> None:
        """What a poll brought was taken. A thread that polls."""
        self.redrive.get(queue, returned)  # seldom a request, and nobody waits for it
        self._warn_near_quota(queue)

    def _warn_near_quota(self, queue: Queue) -> None:
        """Warn if SQS has just said that the queue's messages in flight come near its quota. No request."""
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
        """Another consumer that gives the queue's messages to Celery, if this one does not any more."""
        if self._dispatches(queue.name):
            return None
        return next((each for each in self._consumers() if each._dispatches(queue.name)), None)  # noqa: SLF001

    def _dispatches(self, queue_name: str) -> bool:
        return self._state.phase is Phase.CONSUMING and self._receivers.on_message(queue_name) is not None

    def _fetched(self, delivery: Delivery, content: ReadContent, message: ReceivedMessage) -> None:
        """The payload of a message has come. A thread that fetches."""
        self._put(delivery.queue, self._arrivals.fetched(delivery, content, message))

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> bool:
        """See `core.delivery.Consumer`. Where this one gives nothing to Celery any more, another one may."""
        if (other := self._consumer_instead(delivery.queue)) is not None:
            delivery.consumer = other
            self._let_go()
            return other.take_back(delivery, payload)
        messages = self._arrivals.take_back(delivery, payload)
        if messages is not None:
            self._put(delivery.queue, messages)
        return messages is not None

    def expect(self, queue: Queue, message_id: str, at: float) -> None:
        """See `core.delivery.Consumer`. Where this one polls the queue no more, another one may."""
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
                one.delivery.attended = False  # those that cannot be settled now are given back later
            for one in self._buffer.take(lambda each: each in arrived):
                one.delivery.settle(Lapse())
            raise
        if self._pauses.get(queue.name) is not None:
            self._release_buffered(queue)
        self.holder.extend_in_time()  # not before: one that has lapsed may have been received anew just now


def _late(late: Callable[[float, float], float], buffer: Buffer, now: float) -> float:
    return late(buffer.looped_at, now)
