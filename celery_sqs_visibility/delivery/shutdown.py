"""End of a consumer: gives back deliveries that do not run and finishes settlements, in bounded time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from celery_sqs_visibility.core.delivery import Consumer, Delivery
from celery_sqs_visibility.core.giving_back import GivingBack
from celery_sqs_visibility.core.settlements import RELEASE, Purpose
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.receiver import Receivers
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)


class Shutdown:
    """Gives back the deliveries of one consumer, as `state` decides. Any thread.

    Args:
        state: decides what is given back.
        holder: of the deliveries.
        consumer: the consumer that received them.
        receivers: the consumer's; they are stopped before anything is given back.
        take_buffered: takes the consumer's deliveries, of one queue or all, out of the buffer.
        pauses: the messages of a paused queue are given back until its pause ends.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        state: GivingBack,
        holder: DeliveryHolder,
        consumer: Consumer,
        receivers: Receivers,
        take_buffered: Callable[[str | None], Iterable[Delivery]],
        pauses: Pauses,
        clock: Clock,
    ) -> None:
        self._state = state
        self._holder = holder
        self._consumer = consumer
        self._receivers = receivers
        self._take_buffered = take_buffered
        self._pauses = pauses
        self._clock = clock

    def wait_for_polls(self) -> None:
        """Wait for polls in flight, as long as there is time."""
        self._receivers.wait_for_polls(self._state.polls_end(self._clock.monotonic()))

    def give_back_unstarted(self, queue_name: str | None = None) -> list[Delivery]:
        """Release and return deliveries that do not run, of a paused queue or of all.

        A message that is released during a long poll of this consumer comes straight back, which costs an
        attempt. So one message of each queue that is polled goes first: it ends the long poll, and is
        released again with the others. If another worker receives it, the others follow after
        `OWN_POLL_SECONDS`. Meanwhile runs may begin, and the pause may end.
        """
        state, clock = self._state, self._clock
        if queue_name is None:
            self._holder.copies.interrupt(self._consumer, Purpose.RECORDS)
        else:
            state.pause(queue_name)
        # These go back in any case, though the pause may end at any moment.
        buffered = self._take_buffered(queue_name) if self._gives_back(queue_name) else []
        unstarted = [*self._unstarted(queue_name), *buffered]
        until = state.own_poll_ends(clock.monotonic())
        released = self._give_back(state.first(unstarted, self._receivers.polled()))
        if released:
            self._receivers.wait_for_polls(until, queue_name)
        released += self._give_back([*self._unstarted(queue_name), *buffered])
        self._finish_settling(state.own_poll_ends(clock.monotonic()))
        return released

    def _unstarted(self, queue_name: str | None) -> list[Delivery]:
        unstarted = self._state.unstarted(self._holder.of(self._consumer), queue_name)
        # Checked last: a message that comes after the end of the pause is to run.
        return unstarted if self._gives_back(queue_name) else []

    def _gives_back(self, queue_name: str | None) -> bool:
        """Whether all queues are given back, or that queue is paused."""
        return queue_name is None or self._pauses.get(queue_name) is not None

    def hand_back(self) -> list[Delivery]:
        """Release running deliveries, finish settlements, and return the orphans.

        Does not wait for copies that could not be sent so far: their originals are released, too.
        """
        self._holder.copies.interrupt(self._consumer, Purpose.RENEWAL, Purpose.RECORDS)
        orphans = self._give_back(self._holder.of(self._consumer))
        self.flush()
        return orphans

    def give_back_late(self, delivery: Delivery) -> None:
        """Give back a delivery that a poll brought after the stop or in a pause. A thread that polls."""
        queue = delivery.queue.name
        pause, wait = self._pauses.get(queue), self._holder.options.for_queue(queue).wait_time_seconds
        paused_at = None if pause is None else pause.began
        delivery.settle(self._state.late(delivery, paused_at, wait, self._clock.monotonic()))

    def flush(self) -> None:
        """Finish settlements under way, in bounded time.

        Waits for polls of its own, too: they receive at once what was released during them, and release it
        again.
        """
        until = self._state.flush_ends(self._clock.monotonic())
        finished = self._finish_settling(until)
        if any(receiver.stopping for receiver in self._receivers.all()):
            self._receivers.wait_for_polls(min(until, self._state.own_polls_end()))
        if not (self._finish_settling(until) and finished):
            logger.warning("not everything could be settled in time; those messages come back by themselves")

    def _finish_settling(self, until: float) -> bool:
        self._holder.copies.flush(max(0.0, until - self._clock.monotonic()))
        resumed = self._holder.wait_for_extensions(max(0.0, until - self._clock.monotonic()))
        return self._holder.settler.flush(max(0.0, until - self._clock.monotonic())) and resumed

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release the deliveries that are still held, and return these."""
        deliveries = list(deliveries)
        self._state.note(deliveries)  # before a poll of this consumer may bring one of them back
        released = [delivery for delivery in deliveries if delivery.settle(RELEASE)]
        if released:
            self._state.note_released(self._clock.monotonic())
        return released
