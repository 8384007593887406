"""End of a consumer, bounded in time: deliveries that do not run are given back, settlements finished."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from celery_sqs_visibility.core.delivery import Consumer, Delivery, State
from celery_sqs_visibility.core.settlements import RELEASE, Hide, Purpose, Why
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.receiver import Receivers
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: How long closing waits for polls in flight, unless `end_by` says otherwise.
POLLS_IN_FLIGHT_SECONDS: Final = 4.5

#: The longest flush.
FLUSH_SECONDS: Final = 5.0

#: A message that is released under a poll in flight comes back with that poll within this time.
OWN_POLL_SECONDS: Final = 1.5

#: How long handing back may take after the time that a shutdown has is over.
HAND_BACK_SECONDS: Final = 1.5


class Shutdown:
    """Gives back one consumer's deliveries. Any thread, but for `end_by`: the thread that drains.

    Args:
        holder: of the deliveries.
        consumer: that brought them.
        receivers: the consumer's, which are stopped before anything is given back.
        take_buffered: takes the consumer's deliveries out of the buffer, those of one queue or all.
        pauses: a paused queue's messages are given back until its pause ends.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        holder: DeliveryHolder,
        consumer: Consumer,
        receivers: Receivers,
        take_buffered: Callable[[str | None], Iterable[Delivery]],
        pauses: Pauses,
        clock: Clock,
    ) -> None:
        self._holder = holder
        self._consumer = consumer
        self._receivers = receivers
        self._take_buffered = take_buffered
        self._pauses = pauses
        self._clock = clock
        # Monotonic instants:
        self._ends = math.inf  # the process's time is over
        self._polls_until: float | None = None  # polls in flight are waited for no longer
        self._began: float | None = None  # the worker was told to end
        self._released_at = -math.inf  # a delivery was last given back
        self._given_back: dict[str, set[str]] = {}  # message ids by queue, since its pause or the end began

    def end_by(self, until: float, polls_until: float) -> None:
        if self._began is None:
            self._began = self._clock.monotonic()
            self._given_back = {}
        self._ends, self._polls_until = until, polls_until

    def wait_for_polls(self) -> None:
        """Wait for the polls in flight, for as long as there is time for that."""
        until = self._polls_until
        self._receivers.wait_for_polls(
            self._clock.monotonic() + POLLS_IN_FLIGHT_SECONDS if until is None else until
        )

    def give_back_unstarted(self, queue_name: str | None = None) -> list[Delivery]:
        """Release and return deliveries that do not run, of a paused queue or of all.

        A message released under one's own long poll comes straight back, at the price of an attempt. So one
        message of each queue that is polled goes first: it ends the long poll, and is released again, with
        the others; or after `OWN_POLL_SECONDS`, when another worker has received it. Meanwhile runs may have
        begun, and the pause may be over.
        """
        if queue_name is not None:
            self._given_back.pop(queue_name, None)  # in an earlier pause
        # These go back in any case, though the pause may be over any moment.
        buffered = self._take_buffered(queue_name) if self._gives_back(queue_name) else []
        if queue_name is None:
            self._holder.copies.interrupt(self._consumer, Purpose.RECORDS)
        unstarted = [*self._unstarted(queue_name), *buffered]
        polled = self._receivers.polled()
        first = {d.queue.name: d for d in reversed(unstarted) if d.queue.name in polled}
        now = self._clock.monotonic()
        released = self._give_back(first.values())
        if released:
            self._receivers.wait_for_polls(min(now + OWN_POLL_SECONDS, self._ends), queue_name)
        released += self._give_back([*self._unstarted(queue_name), *buffered])
        self._finish_settling(min(self._clock.monotonic() + OWN_POLL_SECONDS, self._ends))
        return released

    def _unstarted(self, queue_name: str | None) -> list[Delivery]:
        held = self._holder.of(self._consumer)
        unstarted = [d for d in held if d.state is State.HELD and queue_name in {None, d.queue.name}]
        # Asked last: a message that comes after the pause's end is to run.
        return unstarted if self._gives_back(queue_name) else []

    def _gives_back(self, queue_name: str | None) -> bool:
        """Whether all is given back, or that queue is paused."""
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
        """Give back a delivery that a poll brought after the stop, or in a pause. A thread that polls.

        Workers that are told so together have polls in flight together. Released at once, a message would
        go from one to the next, and use up its attempts. So a message is hidden until those polls are over,
        unless it was never received before, or released by this consumer.
        """
        seconds, queue = 0, delivery.queue.name
        pause = self._pauses.get(queue)
        began = pause.began if self._began is None and pause is not None else self._began
        if began is not None and delivery.facts.receive_count > 1:
            polls_over = began + self._holder.options.for_queue(queue).wait_time_seconds
            seconds = max(0, math.ceil(polls_over - self._clock.monotonic()))
        own = delivery.facts.message_id in self._given_back.get(queue, ())
        delivery.settle(RELEASE if own else Hide(seconds, Why.RELEASED))

    def flush(self) -> None:
        """Finish settlements under way, in bounded time.

        A message released under one's own long poll is received by it at once, and is released again.
        """
        until = min(self._clock.monotonic() + FLUSH_SECONDS, self._ends + HAND_BACK_SECONDS)
        finished = self._finish_settling(until)
        if any(receiver.stopping for receiver in self._receivers.all()):
            self._receivers.wait_for_polls(min(until, self._released_at + OWN_POLL_SECONDS))
        if not (self._finish_settling(until) and finished):
            logger.warning("not everything could be settled in time; those messages come back by themselves")

    def _finish_settling(self, until: float) -> bool:
        self._holder.copies.flush(max(0.0, until - self._clock.monotonic()))
        resumed = self._holder.wait_for_extensions(max(0.0, until - self._clock.monotonic()))
        return self._holder.settler.flush(max(0.0, until - self._clock.monotonic())) and resumed

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release those that are still held, and return these."""
        deliveries = list(deliveries)
        # Before a poll of our own may bring one of them back.
        for each in deliveries:
            self._given_back.setdefault(each.queue.name, set()).add(each.facts.message_id)
        released = [delivery for delivery in deliveries if delivery.settle(RELEASE)]
        if released:
            self._released_at = self._clock.monotonic()
        return released
