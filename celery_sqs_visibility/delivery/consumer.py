"""Everything a channel holds from SQS, and the threads that look after it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.batch_threads import BatchThreads
from celery_sqs_visibility.delivery.event_log import Fields, listen
from celery_sqs_visibility.delivery.hold.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.hold.redelivery import Met, RedeliveryIndex
from celery_sqs_visibility.delivery.lease_table import lease_table
from celery_sqs_visibility.delivery.model import (
    Delete,
    Delivery,
    Hide,
    Lapse,
    Park,
    Release,
    Renew,
    Settlement,
)
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.receive.decoder import Decoder, Open, Opened, UnreadableError
from celery_sqs_visibility.delivery.receive.receiver import Receiver
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.settle.settlements import Settlements
from celery_sqs_visibility.delivery.supervisor import Supervised, Supervisor
from celery_sqs_visibility.events import FinishedBefore, Started, Superseded, emit
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.polling import PollSchedule
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

logger = logging.getLogger(__name__)

#: Seconds that closing waits for polls in flight, and for settlements.
POLLS_IN_FLIGHT = 4.5
FLUSH = 5.0

#: Seconds in which a poll that is still in flight brings back what was released under it.
COMES_BACK = 1.5

#: Seconds that handing back may take, when the time that a shutdown has is over.
HAND_BACK = 1.5

#: Takes a kombu payload on the main thread.
HandOver = Callable[[dict[str, Any]], object]


class QueueConsumer:
    """Receives, holds, extends and settles, for all queues of a channel, and outlives it if it must.

    `consume`, `cancel` and `close` belong to the main thread; deliveries are settled from any.

    Args:
        options: the transport options.
        receive: what to ask of every receive.
        open_message: makes a payload of a message.
        redrive: the queues' redrive policies.
        returns: knows what this process holds and has finished, in whatever consumer.
        buffer: where what is to be handed to Celery goes.
        clock: time.
        slots: tells the slots of the pool, if there is one.
        worker_name: Celery's name of this node, for dead letters.
    """

    def __init__(
        self,
        options: Options,
        receive: ReceiveOptions,
        open_message: Open,
        redrive: RedriveBook,
        redeliveries: RedeliveryIndex,
        buffer: Buffer,
        clock: Clock = SYSTEM_CLOCK,
        slots: Callable[[], Slots] | None = None,
        worker_name: str = "",
    ) -> None:
        self.options = options
        self.redrive = redrive
        self._redeliveries = redeliveries
        self.capacity = ReceiveCapacity(options.prefetch_seconds, clock, slots)
        self.ledger = Ledger(options.visibility_timeout, options.heartbeat_interval)
        self._buffer = buffer
        self._receive = receive
        self._clock = clock
        self.parking = Parking(redrive, options.visibility_timeout, clock)
        self._settlements = Settlements(
            options.visibility_timeout,
            options.settle_window,
            clock,
            redrive,
            redeliveries.finish,
            self._expect,
            self.ledger.postponed,
            self.parking,
            self._take_back,
            worker_name,
        )
        self._heartbeat = Heartbeat(self.ledger, clock, self._settlements.carry_out)
        self._supervisor = Supervisor(self._supervised, clock)
        self._decoder = Decoder(
            open_message, options.visibility_timeout, options.error_visibility_timeout, clock, self
        )
        self.rejection = self.failures = Rejection(redrive, self._decoder, options.on_exhausted)
        # Guards changes of _receivers, _running. Reentrant: Celery's cold shutdown settles in a signal
        # handler, on a thread that may be here just now.
        self._lock = threading.RLock()
        self._receivers: dict[str, tuple[Receiver, HandOver]] = {}
        self._retired: list[
            Receiver
        ] = []  # those that were stopped and replaced, whose polls may be in flight
        self._abandoned: set[str] = set()  # queues that are being deleted
        self._running = False
        self._closed = False  # what still runs is the last of it
        self._hands_over = True
        self._polls_until: float | None = None  # until when closing waits for polls in flight
        self._ends = math.inf  # the monotonic instant at which a shutdown's time is over
        self._ending_since: float | None = None  # when that shutdown began
        self._released_at = -math.inf  # when something was last given back because of a shutdown
        self._given_back: set[tuple[str, str]] = set()  # what was: queues and message ids

    def consume(self, queue: Queue, hand_over: HandOver) -> None:
        """Poll the queue from now on; its messages go to `hand_over`, on the thread that calls ours."""
        self._start()
        # Known before the first message is, since it says which attempt is the last.
        self.redrive.get(queue, self._clock.monotonic())
        self.redrive.find_dead_letter_queue(queue)
        options = self.options
        schedule = PollSchedule(options.polling_interval, options.polling_interval_max)
        receiver = Receiver(
            queue,
            self.capacity,
            schedule,
            options.wait_time_seconds,
            self._receive,
            self._clock,
            self._arrived,
            self._give_back_waiting,
        )
        self.cancel(queue.name)
        with self._lock:
            self._retire(queue.name)
            self._abandoned.discard(queue.name)
            self._receivers[queue.name] = (receiver, hand_over)
        receiver.start()

    def cancel(self, queue_name: str) -> None:
        """Poll the queue no more; what waits in the buffer is given back when its last poll is over.

        Celery's cold shutdown calls it in a signal handler, so it takes no lock that the main thread may hold
        half-way through something.
        """
        receiver, _ = self._receivers.get(queue_name, (None, None))
        if receiver is not None:
            receiver.stop()
            self.capacity.interrupt()

    def _retire(self, queue_name: str) -> None:
        """Under the lock: forget the queue's receiver, but for its polls in flight."""
        receiver, _ = self._receivers.pop(queue_name, (None, None))
        if receiver is not None:
            self._retired.append(receiver)

    def abandon(self, queue_name: str) -> None:
        """After `cancel`, before the queue is deleted: let go of its messages, and finish what is settled."""
        self._abandoned.add(queue_name)
        self._buffer.take(
            lambda buffered: buffered.delivery.queue.name == queue_name and buffered.delivery.holder is self
        )
        for delivery in self.ledger.all():
            if delivery.queue.name == queue_name:
                delivery.settle(Lapse())
        self.flush()

    def settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Settle a delivery; whether it was still ours to settle. Any thread; does no I/O."""
        if isinstance(settlement, Delete) and self.ledger.holds(delivery):
            self._redeliveries.finish(delivery)
        held, now = self.ledger.settle(delivery, settlement)
        if held:
            self._redeliveries.let_go(delivery)
            self._let_go(delivery)
        if now:
            self._settlements.carry_out(delivery, settlement)
        return held

    def start(self, delivery: Delivery) -> bool:
        """A pool begins to run it: it is not given back under the run. Any thread.

        Returns:
            Whether it may: `False` if it was given back meanwhile, or lost.
        """
        # What was dispatched runs, whatever we say.
        if not delivery.dispatched and self._lapsed(delivery):
            return False
        if not self.ledger.start(delivery, self._clock.monotonic()):
            return False
        emit(Started(delivery.facts))
        return True

    def dispatch(self, delivery: Delivery) -> bool:
        """It goes to a pool that cannot be kept from running it; whether it may, as for `start`."""
        return not self._lapsed(delivery) and self.ledger.dispatch(delivery)

    def extend(self, delivery: Delivery, until: float) -> bool:
        """Its task wants it hidden until that monotonic instant; whether it is held. Any thread."""
        held = self.ledger.want(delivery, until, self._clock.monotonic())
        self._heartbeat.notice()
        return held

    def supersede(self, delivery: Delivery, superseded_by: Delivery) -> bool:
        """A newer delivery of the message, of this consumer or another, takes over. A receiver's thread."""
        if not self.ledger.supersede(delivery, superseded_by):
            return False
        self.capacity.gave_back(fifo=delivery.queue.fifo)
        self._stop_if_last()
        if wanted := superseded_by.current.wanted:  # its task still waits for that
            superseded_by.extend(wanted)
        return True

    def ran(self, delivery: Delivery) -> None:
        """A run has ended whose message was acknowledged when it began. Any thread."""
        if delivery.began is not None:
            self.capacity.ran(delivery, delivery.began)

    def _let_go(self, ended: Delivery) -> None:
        fifo = ended.queue.fifo
        if ended.began is not None and ended.acknowledged_early:
            self.capacity.runs_on(ended, fifo=fifo)
        else:
            self.capacity.gave_back(began=ended.began, fifo=fifo)
        self._stop_if_last()

    def _stop_if_last(self) -> None:
        if self._closed and not len(self.ledger):
            self._stop()

    def _lapsed(self, delivery: Delivery) -> bool:
        """Whether another worker has it by now, or will; then we let it go."""
        if not (delivery.lost or delivery.deadline <= self._clock.monotonic()):
            return False
        return delivery.holder.settle(delivery, Lapse())  # it may have given way just now

    def stop_polling(self) -> None:
        """Poll no more, in none of the queues, and hand nothing over to Celery.

        Takes no lock that a signal handler could find taken.
        """
        self._hands_over = False
        for receiver, _ in list(self._receivers.values()):
            receiver.stop()
        self.capacity.interrupt()

    def end_by(self, until: float, polls_until: float) -> None:
        """The worker ends, at that monotonic instant, and waits until the other for polls in flight.

        Who says so again has the last word. Any thread.
        """
        if self._ending_since is None:
            self._ending_since = self._clock.monotonic()
        self._ends, self._polls_until = until, polls_until

    def wait_for_polls(self, until: float) -> bool:
        """After `stop_polling`: wait for polls in flight until that instant; whether none is left."""
        with self._lock:
            receivers = [*self._retired, *(receiver for receiver, _ in self._receivers.values())]
        ended = all(receiver.settle_down(until) for receiver in receivers)
        with self._lock:
            self._retired = [each for each in self._retired if not each.settle_down(self._clock.monotonic())]
        return ended

    def give_back_unstarted(self) -> list[Delivery]:
        """After `stop_polling`: release what does not run. Any thread.

        Under one's own long poll a released message comes straight back, at the price of an attempt. So where
        polls are in flight, one message of each queue goes first: it ends its queue's long poll, and is
        released once more, with the others. After a second and a half they are released anyhow: another
        worker has it.

        Returns:
            What was released.
        """
        waiting = self._buffer.take(lambda buffered: buffered.delivery.holder is self)
        # What came back to another consumer while it waited here is not among those that the ledger has.
        unstarted = [*self.ledger.unstarted(), *(buffered.delivery for buffered in waiting)]
        now = self._clock.monotonic()
        polled = {
            name for name, (receiver, _) in list(self._receivers.items()) if not receiver.settle_down(now)
        }
        first = {d.queue.name: d for d in reversed(unstarted) if d.queue.name in polled}
        released = self._give_back(first.values())
        if released:
            self.wait_for_polls(min(now + COMES_BACK, self._ends))
        released += self._give_back([*unstarted, *self.ledger.unstarted()])
        self._finish_settling(min(self._clock.monotonic() + COMES_BACK, self._ends))
        return released

    def hand_back(self) -> list[Delivery]:
        """After `give_back_unstarted`: hand back what runs, and finish what is being settled.

        Returns:
            What still ran: the orphans.
        """
        orphans = self._give_back(self.ledger.all())
        self.flush()
        return orphans

    def flush(self) -> None:
        """Finish what is being settled; bounded in time.

        What was released under a long poll of one's own is its answer, at once, and is released again.
        """
        until = min(self._clock.monotonic() + FLUSH, self._ends + HAND_BACK)
        finished = self._finish_settling(until)
        if any(receiver.stopping for receiver, _ in list(self._receivers.values())):
            self.wait_for_polls(min(until, self._released_at + COMES_BACK))
        if not (self._finish_settling(until) and finished):
            logger.warning("not everything could be settled in time; SQS hands it out again")

    def _finish_settling(self, until: float) -> bool:
        resumed = self.ledger.wait_for_extensions(max(0.0, until - self._clock.monotonic()))
        return self._settlements.settler.flush(max(0.0, until - self._clock.monotonic())) and resumed

    def close(self) -> None:
        """Stop polling, give back what does not run, finish what is under way; bounded in time.

        What still runs stays extended, and can be settled, until it ends.
        """
        self.stop_polling()
        until = self._polls_until
        self.wait_for_polls(self._clock.monotonic() + POLLS_IN_FLIGHT if until is None else until)
        self.give_back_unstarted()
        self.flush()
        with self._lock:
            for queue_name in list(self._receivers):
                self._retire(queue_name)
            self._closed = True
        if not len(self.ledger):
            self._stop()

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release those that are still held: which those were."""
        deliveries = list(deliveries)
        # Before a poll of our own may bring one of them back.
        self._given_back.update((d.queue.name, d.facts.message_id) for d in deliveries)
        released = [delivery for delivery in deliveries if delivery.settle(Release())]
        if released:
            self._released_at = self._clock.monotonic()
        return released

    def _give_back_late(self, delivery: Delivery) -> None:
        """Give back what a poll brought after the stop. The receivers' threads.

        Workers that are told to end together have polls in flight together. Released at once, a message would
        go from one to the next, and use up its attempts. So at once goes what was never received before, and
        what this consumer had released; anything else is hidden until those polls are over.
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

    def _start(self) -> None:
        with self._lock:
            self._closed, self._hands_over = False, True
            if self._running:
                return
            self._running = True
        listen()
        for batch_threads in self._all_batch_threads():
            batch_threads.start()
        self._supervisor.start()

    def _stop(self) -> None:
        with self._lock:
            if not self._running or self._receivers:
                return
            self._running = False
            self._supervisor.stop()
        for batch_threads in self._all_batch_threads():
            batch_threads.stop()

    def _all_batch_threads(self) -> tuple[BatchThreads[Any], ...]:
        return self._heartbeat.batch_threads, self._settlements.settler.batch_threads

    def _supervised(self) -> list[Supervised]:
        receivers = [receiver for receiver, _ in list(self._receivers.values())]
        seats = lease_table()
        return [*receivers, self.capacity, *self._all_batch_threads(), *([seats] if seats else [])]

    def _arrived(
        self, queue: Queue, messages: Sequence[ReceivedMessage], called: float, returned: float
    ) -> None:
        """A poll brought these. The receivers' threads."""
        taken = self._decoder.take_in(queue, messages, called, returned)
        for _ in range(len(messages) - len(taken)):
            self.capacity.gave_back(fifo=queue.fifo)
        self.ledger.add(delivery for delivery, _, _ in taken)
        receiver, hand_over = self._receivers.get(queue.name, (None, None))
        buffered_messages: list[BufferedMessage] = []
        wanted = hand_over if receiver is not None and not receiver.stopping else None
        for delivery, content, message in taken:
            try:
                if (buffered := self._sorted(delivery, content, message, wanted)) is not None:
                    buffered_messages.append(buffered)
            except Exception:
                logger.exception("taking in a message stumbled", extra={"queue": queue.name})
                delivery.settle(Lapse())
        self._buffer.put(buffered_messages)
        self._heartbeat.notice()  # not before: what lapsed just now may have come back
        self.redrive.get(queue, returned)  # seldom a request, and nobody waits for it

    def _sorted(
        self,
        delivery: Delivery,
        content: Opened | UnreadableError,
        message: ReceivedMessage,
        hand_over: HandOver | None,
    ) -> BufferedMessage | None:
        """What arrived as a parcel for Celery, if it is for Celery now; otherwise it is seen to."""
        if isinstance(content, Opened):
            delivery.parks = self.parking.parks_so_far(delivery, content)
        if self._known(delivery):
            return None
        if isinstance(content, UnreadableError):
            self.failures.refuse(delivery, str(content), message["Body"])
        elif (waiting := self.parking.waiting(delivery, content, message)) is not None and (
            hand_over is not None or isinstance(waiting, Park)  # no copy is sent when all is to be over soon
        ):
            delivery.settle(waiting)
        elif hand_over is None:
            self._give_back_late(delivery)
        else:
            return BufferedMessage(delivery, content.payload, self._to(hand_over))
        return None

    def _known(self, delivery: Delivery) -> bool:
        """Whether its message is held here already, or was finished here; then there is nothing to run."""
        match self._redeliveries.meet(delivery):
            case Met.HELD:
                emit(Superseded(delivery.facts))
            case Met.FINISHED:
                emit(FinishedBefore(delivery.facts))
                delivery.settle(Delete())
            case Met.NEW:
                return False
        return True

    def _take_back(self, delivery: Delivery, renew: Renew) -> None:
        """Its queue refuses the copy, and would not hand it out again: Celery holds it. The settler's."""
        asked_at = delivery.horizon - VISIBILITY_HORIZON
        again = Delivery(
            delivery.queue,
            delivery.handle,
            delivery.facts,
            asked_at,
            delivery.deadline,
            self,
            delivery.message_attributes,
        )
        again.parks = delivery.parks
        self.capacity.unexpected(1, fifo=delivery.queue.fifo)
        self.ledger.add([again])
        receiver, hand_over = self._receivers.get(delivery.queue.name, (None, None))
        if self._known(again):
            return
        if hand_over is None or receiver is None or receiver.stopping:
            self._give_back_late(again)
        else:
            self._buffer.put([BufferedMessage(again, renew.payload, self._to(hand_over))])
            self._heartbeat.notice()

    def _expect(self, queue: Queue, message_id: str, at: float) -> None:
        receiver, _ = self._receivers.get(queue.name, (None, None))
        if receiver is not None:
            receiver.expect(message_id, at)

    def _give_back_waiting(self, queue: Queue) -> None:
        """Nobody consumes the queue any more. The receiver's thread, after its last poll."""
        receiver, _ = self._receivers.get(queue.name, (None, None))
        if receiver is not None and not receiver.stopping:
            return  # somebody does again
        for buffered in self._buffer.take(
            lambda buffered: buffered.delivery.queue is queue and buffered.delivery.holder is self
        ):
            buffered.delivery.settle(Release())

    def _to(self, consumer: HandOver) -> Callable[[BufferedMessage, bool], None]:
        """How a parcel is handed to that consumer, on the main thread.

        A consumer's exception is raised if that is wanted, and its message stays held; otherwise it is
        logged, and the message comes back.
        """

        def hand_over(buffered: BufferedMessage, raising: bool) -> None:  # noqa: FBT001 - see BufferedMessage
            delivery = buffered.delivery
            if not self._hands_over or self._lapsed(delivery.current):
                return  # what is held and does not run is given back
            try:
                consumer(buffered.payload)
            except Exception:
                if raising:
                    raise
                facts = Fields(message_id=delivery.facts.message_id)
                logger.exception("message could not be handed to Celery (%s)", facts, extra={"sqs": facts})
                delivery.settle(self.failures.after_an_error(delivery))

        return hand_over
