"""Pauses of queues, which are not polled meanwhile, and of tasks, which are not run."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.kept_pauses import kept_until
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    RequestRefusedError,
    ThrottledError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

#: How often a throttled request for a queue's tags is made, which takes about ten seconds. All workers of an
#: account together may make 30 requests about tags a second, and a large fleet starts at once.
THROTTLED_TRIES: Final = 10

#: A message whose task is paused is checked again after this time.
LOOK_SECONDS: Final = 60

#: After these errors the queue is polled as if it were not paused. After others a poll would fail, too.
UNREADABLE: Final = (AccessDeniedError, RequestRefusedError, ThrottledError, UnrecognizedResponseError)


@dataclass(frozen=True, slots=True)
class Pause:
    """The monotonic instants of a pause; `until` is infinity if it has no end.

    `kept` is whether workers that start meanwhile are paused, too.
    """

    began: float
    until: float
    kept: bool = False


class Pauses:
    """Paused queues or tasks, by name. One for each process, because a pause outlasts a connection.

    Any thread. A pause that is over counts as none.

    Attributes:
        rests: by queue name, the monotonic instant until which polling rests. A rest is not a pause: messages
            that were received are not given back.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards writes: looking up a key is atomic
        self._pauses: dict[str, Pause] = {}
        self.rests: dict[str, float] = {}
        self._said_unreadable = False

    def pause(self, queue: str, seconds: float = math.inf, *, kept: bool = False) -> None:
        """Pause the queue from now on for `seconds`, in place of any pause it has."""
        with self._lock:
            self._pauses[queue] = self._pause_for(seconds, kept=kept)

    def resume(self, queue: str) -> None:
        """End the queue's pause, if any. A tag that is being read meanwhile has no effect."""
        with self._lock:
            self._pauses[queue] = self._pause_for(0.0)

    def read_tag(self, queue: Queue, failures: int) -> None:
        """Begin the pause stored in the queue's tag, unless a command pauses or resumes it meanwhile.

        Makes a request. If the tag can't be read, the queue is not paused, and this is logged once.
        `failures` is the number of failed requests before this one.

        Raises:
            SQSError: SQS does not answer now: ask again.
        """
        before = self._pauses.get(queue.name)
        try:
            until = kept_until(queue)
        except UNREADABLE as error:
            if isinstance(error, ThrottledError) and failures < THROTTLED_TRIES:
                raise
            if not self._said_unreadable:
                self._said_unreadable = True
                log_safely(
                    logger.warning,
                    "cannot read the tags of queue %r, so this worker polls it even if `celery sqs pause "
                    "--keep` has paused it: %s",
                    queue.name,
                    error,
                )
            return
        seconds = 0.0 if until is None else until - self._clock.wall()
        if seconds <= 0 or self.get(queue.name) is not None:
            return
        with self._lock:
            if self._pauses.get(queue.name) is not before:
                return
            self._pauses[queue.name] = self._pause_for(seconds, kept=True)
        log_safely(logger.info, "queue %r is paused by its tag: `celery sqs resume` ends that", queue.name)

    def _pause_for(self, seconds: float, *, kept: bool = False) -> Pause:
        now = self._clock.monotonic()
        return Pause(now, now + seconds, kept)

    def get(self, queue: str) -> Pause | None:
        """The queue's pause; `None` if it is not paused now."""
        pause = self._pauses.get(queue)
        return pause if pause is not None and self._clock.monotonic() < pause.until else None

    def polls_from(self, queue: str) -> float:
        """The monotonic instant from which the queue may be polled, after its latest pause and rest."""
        pause, rest = self._pauses.get(queue), self.rests.get(queue, -math.inf)
        return rest if pause is None else max(rest, pause.until)

    def seconds_left(self, queue: str) -> float:
        """How long the queue's pause still lasts; 0 without a pause."""
        pause = self._pauses.get(queue)
        return 0.0 if pause is None else max(0.0, pause.until - self._clock.monotonic())

    def all(self) -> dict[str, float | None]:
        """The seconds that each pause still lasts, by name; `None` for one without an end."""
        left = {name: self.seconds_left(name) for name in list(self._pauses)}
        return {name: round(each, 1) if each < math.inf else None for name, each in left.items() if each}
