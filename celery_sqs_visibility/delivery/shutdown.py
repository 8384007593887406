"""End of a consumer, bounded in time: deliveries that do not run are given back, settlements finished."""

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
    """Gives back one consumer's deliveries, and waits for what `state` says. Any thread.

    Args:
        state: decides what is given back.
        holder: of the deliveries.
        consumer: that brought them.
        receivers: the consumer's, which are stopped before anything is given back.
        take_buffered: takes the consumer's deliveries out of the buffer, those of one queue or all.
        pauses: a paused queue's messages are given back until its pause ends.
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
        """Wait for the polls in flight, for as long as there is time for that."""
        self._receivers.wait_for_polls(self._state.polls_end(self._clock.monotonic()))

    def give_back_unstarted(self, queue_name: str | None = None) -> list[Delivery]:
        """Release and return deliveries that do not run, of a paused queue or of all.

        A message released under one's own long poll comes straight back, at the price of an attempt. So one
        message of each queue that is polled goes first: it ends the long poll, and is released again, with
        the others; or after `OWN_POLL_SECONDS`, when another worker has received it. Meanwhile runs may have
        begun, and the pause may be over.
        """
        state, clock = self._state, self._clock
        if queue_name is None:
            self._holder.copies.interrupt(self._consumer, Purpose.RECORDS)
        else:
            state.pause(queue_name)
        # These go back in any case, though the pause may be over any moment.
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
        # Asked last: a message that comes after the pause's end is to run.
        return unstarted if self._gives_back(queue_name) else []

    def _gives_back(self, queue_name: str | None) -> bool:
        """Return whether all is given back, or that queue is paused."""
        return queue_name is None or self._pauses.get(queue_name) is not None

    def hand_back(self) -> list[Delivery]:
        """Release running deliveries, finish settlements, and return the orphans.

        Copies that could not be sent so far are not awaited any longer: their originals are released, too.
        """
        self._holder.copies.interrupt(self._consumer, Purpose.RENEWAL, Purpose.RECORDS)
        orphans = self._give_back(self._holder.of(self._consumer))
        self.flush()
        return orphans

    def give_back_late(self, delivery: Delivery) -> None:
        """Give back a delivery that a poll brought after the stop, or in a pause. A thread that polls."""
        queue = delivery.queue.name
        pause, wait = self._pauses.get(queue), self._holder.options.for_queue(queue).wait_time_seconds
        paused_at = None if pause is None else pause.began
        delivery.settle(self._state.late(delivery, paused_at, wait, self._clock.monotonic()))

    def flush(self) -> None:
        """Finish settlements under way, in bounded time.

        A message released under one's own long poll is received by it at once, and is released again.
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
        """Release those that are still held, and return these."""
        deliveries = list(deliveries)
        self._state.note(deliveries)  # before a poll of our own may bring one of them back
        released = [delivery for delivery in deliveries if delivery.settle(RELEASE)]
        if released:
            self._state.note_released(self._clock.monotonic())
        return released
