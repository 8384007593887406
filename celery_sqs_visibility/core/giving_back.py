"""What a consumer gives back: at its end, in a pause of a queue, and of a queue that is being deleted."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable
from typing import Final

from celery_sqs_visibility.core.delivery import Delivery, State
from celery_sqs_visibility.core.settlements import RELEASE, Direct, Hide, Lapse, Why

#: How long closing waits for polls in flight, unless `end_by` says otherwise.
POLLS_IN_FLIGHT_SECONDS: Final = 4.5

#: The longest wait for settlements under way.
FLUSH_SECONDS: Final = 5.0

#: A message that is released under a poll in flight comes back with that poll within this time.
OWN_POLL_SECONDS: Final = 1.5

#: How long handing back may take after the time that a shutdown has is over.
HAND_BACK_SECONDS: Final = 1.5


class Phase(enum.Enum):
    """How far a consumer has come."""

    CONSUMING = "it polls, and Celery gets its messages"
    STOPPED = "it polls nothing, and Celery gets nothing more"
    CLOSED = "its lanes end with the last message that it holds"


class GivingBack:
    """State of a consumer that ends, or whose queues are paused or deleted. Instants are monotonic.

    Any thread: each access is one step, and who comes late gives back what is settled already.

    Attributes:
        phase: of the consumer.
        ends: when the time of the process is over; infinity while it isn't told to end.
    """

    def __init__(self) -> None:
        self.phase = Phase.CONSUMING
        self.ends = math.inf
        self._began: float | None = None  # when the worker was told to end
        self._polls_until: float | None = None  # polls in flight are waited for no longer
        self._released_at = -math.inf  # a message was last given back
        self._given_back: dict[str, set[str]] = {}  # message ids by queue, since its pause or the end began
        self._deleted: set[str] = set()  # queues that are being deleted

    # What happens to the consumer.

    def consume(self) -> None:
        """It polls, and Celery gets its messages."""
        self.phase = Phase.CONSUMING

    def consume_queue(self, queue: str) -> None:
        """The queue is consumed, perhaps anew after its deletion."""
        self._deleted.discard(queue)

    def stop(self) -> None:
        """It polls none of its queues from now on, and Celery gets nothing more."""
        if self.phase is Phase.CONSUMING:
            self.phase = Phase.STOPPED

    def close(self) -> None:
        """All has been given back that does not run."""
        self.phase = Phase.CLOSED

    def end_by(self, until: float, polls_until: float, now: float) -> None:
        """The worker was told to end at `until`, and waits for polls in flight until `polls_until`."""
        if self._began is None:
            self._began = now
            self._given_back = {}
        self.ends, self._polls_until = until, polls_until

    def pause(self, queue: str) -> None:
        """A pause of the queue begins: what an earlier one gave back is forgotten."""
        self._given_back.pop(queue, None)

    def delete(self, queue: str) -> None:
        """The queue is being deleted: what arrives of it is not given back."""
        self._deleted.add(queue)

    # What follows.

    def unstarted(self, held: Iterable[Delivery], queue: str | None) -> list[Delivery]:
        """Return the deliveries that do not run, of this queue or of all."""
        return [each for each in held if each.state is State.HELD and queue in {None, each.queue.name}]

    def first(self, unstarted: Iterable[Delivery], polled: Collection[str]) -> list[Delivery]:
        """Return the first delivery of each queue that is polled: its release ends the queue's long poll."""
        first: dict[str, Delivery] = {}
        for each in unstarted:
            if each.queue.name in polled:
                first.setdefault(each.queue.name, each)
        return list(first.values())

    def note(self, deliveries: Iterable[Delivery]) -> None:
        """These are about to be released: a poll in flight may bring them at once."""
        for each in deliveries:
            self._given_back.setdefault(each.queue.name, set()).add(each.facts.message_id)

    def note_released(self, now: float) -> None:
        """Some of them were released."""
        self._released_at = now

    def late(self, delivery: Delivery, paused_at: float | None, wait: int, now: float) -> Direct:
        """Return how to settle what a poll of `wait` seconds has brought after the stop, or in a pause.

        Workers that are told so together have polls in flight together. Released at once, a message would
        go from one to the next, and use up its attempts. So a message is hidden until those polls are over,
        unless it was never received before, or released by this consumer. `paused_at` is when the pause of
        its queue began.
        """
        queue, facts, seconds = delivery.queue.name, delivery.facts, 0
        if queue in self._deleted:
            return Lapse()  # without a request
        if facts.message_id in self._given_back.get(queue, ()):
            return RELEASE
        began = paused_at if self._began is None else self._began
        if began is not None and facts.receive_count > 1:
            seconds = max(0, math.ceil(began + wait - now))
        return Hide(seconds, Why.RELEASED)

    def polls_end(self, now: float) -> float:
        """Return until when closing waits for polls in flight."""
        return now + POLLS_IN_FLIGHT_SECONDS if self._polls_until is None else self._polls_until

    def own_poll_ends(self, now: float) -> float:
        """Return until when a poll in flight may bring what is released now."""
        return min(now + OWN_POLL_SECONDS, self.ends)

    def own_polls_end(self) -> float:
        """Return until when polls in flight may bring what was released last."""
        return self._released_at + OWN_POLL_SECONDS

    def flush_ends(self, now: float) -> float:
        """Return until when settlements under way are waited for."""
        return min(now + FLUSH_SECONDS, self.ends + HAND_BACK_SECONDS)
