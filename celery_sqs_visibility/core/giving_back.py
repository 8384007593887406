"""How a consumer gives messages back: when it ends, when a queue is paused, and when a queue is deleted."""

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

#: A poll in flight brings a message that is released meanwhile within this time.
OWN_POLL_SECONDS: Final = 1.5

#: How long giving back messages may take after the end of a shutdown's time.
HAND_BACK_SECONDS: Final = 1.5


class Phase(enum.Enum):
    """Stages of a consumer."""

    CONSUMING = "it polls, and Celery gets its messages"
    STOPPED = "it polls nothing, and Celery gets nothing more"
    CLOSED = "its lanes end with the last message that it holds"


class GivingBack:
    """State of a consumer that ends, or whose queues are paused or deleted. Instants are monotonic.

    Any thread: each access is atomic, and a late one only affects messages that are settled already.

    Attributes:
        phase: the stage of the consumer.
        ends: when the time of the process is over; infinity before it is told to end.
    """

    def __init__(self) -> None:
        self.phase = Phase.CONSUMING
        self.ends = math.inf
        self._began: float | None = None  # when the worker was told to end
        self._polls_until: float | None = None  # polls in flight aren't waited for any longer
        self._released_at = -math.inf  # when a message was last given back
        self._given_back: dict[str, set[str]] = {}  # message ids by queue, since its pause began or the end
        self._deleted: set[str] = set()  # queues that are being deleted

    def consume(self) -> None:
        """Note that the consumer polls, and that Celery gets its messages."""
        self.phase = Phase.CONSUMING

    def consume_queue(self, queue: str) -> None:
        """Note that the queue is consumed, perhaps again after its deletion."""
        self._deleted.discard(queue)

    def stop(self) -> None:
        """Note that the consumer polls no queue any more, and that Celery gets no more messages."""
        if self.phase is Phase.CONSUMING:
            self.phase = Phase.STOPPED

    def close(self) -> None:
        """Note that every message that isn't running has been given back."""
        self.phase = Phase.CLOSED

    def end_by(self, until: float, polls_until: float, now: float) -> None:
        """Note that the worker ends at `until`, and waits for polls in flight until `polls_until`."""
        if self._began is None:
            self._began = now
            self._given_back = {}
        self.ends, self._polls_until = until, polls_until

    def pause(self, queue: str) -> None:
        """Begin a pause of the queue: forget what an earlier one gave back."""
        self._given_back.pop(queue, None)

    def delete(self, queue: str) -> None:
        """Note that the queue is being deleted: messages that arrive from it are not given back."""
        self._deleted.add(queue)

    def unstarted(self, held: Iterable[Delivery], queue: str | None) -> list[Delivery]:
        """Return the deliveries that have not started, of this queue or of all."""
        return [each for each in held if each.state is State.HELD and queue in {None, each.queue.name}]

    def first(self, unstarted: Iterable[Delivery], polled: Collection[str]) -> list[Delivery]:
        """Return one delivery of each polled queue: releasing it ends the queue's long poll."""
        first: dict[str, Delivery] = {}
        for each in unstarted:
            if each.queue.name in polled:
                first.setdefault(each.queue.name, each)
        return list(first.values())

    def note(self, deliveries: Iterable[Delivery]) -> None:
        """Note deliveries that are about to be released: a poll in flight may receive them again."""
        for each in deliveries:
            self._given_back.setdefault(each.queue.name, set()).add(each.facts.message_id)

    def note_released(self, now: float) -> None:
        """Note that deliveries have been released."""
        self._released_at = now

    def late(self, delivery: Delivery, paused_at: float | None, wait: int, now: float) -> Direct:
        """Return how to settle a message that a poll of `wait` seconds received after the stop or in a pause.

        Workers that stop together have polls in flight together. A message that is released at once would
        pass from one to the next, and use up its attempts. So it is hidden until those polls are over, unless
        this is its first receive or this consumer released it. `paused_at` is when the pause of its queue
        began.
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
        """Return until when a poll in flight may receive a message that is released now."""
        return min(now + OWN_POLL_SECONDS, self.ends)

    def own_polls_end(self) -> float:
        """Return until when polls in flight may receive the message that was released last."""
        return self._released_at + OWN_POLL_SECONDS

    def flush_ends(self, now: float) -> float:
        """Return until when to wait for settlements in flight."""
        return min(now + FLUSH_SECONDS, self.ends + HAND_BACK_SECONDS)
