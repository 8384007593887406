"""Trail: what this process did with messages that did not simply succeed, for a while."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import line_of
from celery_sqs_visibility.delivery.threads import snapshot
from celery_sqs_visibility.events import DeliveryEvent, subscribe, subscribed
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.message_limits import truncated

#: A message that succeeds at once leaves no event.
KINDS: Final = (
    events.Unreadable,
    events.Parked,
    events.Renewed,
    events.Superseded,
    events.Lost,
    events.HorizonNear,
    events.Failed,
    events.Hidden,
    events.Skipped,
    events.FinishedBefore,
    events.Released,
    events.DeadLettered,
)

#: About 1 kB each; a failed attempt takes two to four.
MAX_EVENTS: Final = 5000

#: Characters to keep of an error or a reason.
MAX_TEXT: Final = 300


class Trail:
    """The latest events. Any thread, without a lock: a deque adds one and drops the oldest atomically."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._events: deque[tuple[float, DeliveryEvent]] = deque(maxlen=MAX_EVENTS)

    def listen(self) -> None:
        """Start to keep events. Idempotent."""
        if not subscribed(self.note):
            for kind in KINDS:
                subscribe(self.note, kind)

    def note(self, event: DeliveryEvent) -> None:
        """Keep an event. Its texts are cut, because an exception's may be long."""
        for name in ("error", "reason"):
            text = getattr(event, name, "")
            if len(text) > MAX_TEXT:
                cut: dict[str, Any] = {name: truncated(text, MAX_TEXT)}
                event = replace(event, **cut)
        self._events.append((self._clock.wall(), event))

    def of(self, task_id: str) -> list[dict[str, Any]]:
        """The events of a task, oldest first: `at`, in seconds since the epoch, and a log line's fields."""
        return [
            {"at": at, **{name: value for name, value in line_of(event).items() if value is not None}}
            for at, event in snapshot(self._events)
            if event.delivery.task_id == task_id
        ]


#: The trail of this process.
TRAIL: Final = Trail()
