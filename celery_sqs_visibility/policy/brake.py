"""Brakes: while a dependency of tasks fails, their runs wait, then start one by one, then freely again.

A circuit breaker for tasks. It counts how runs end and decides which may start; the driver makes the others
wait.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import Final, NamedTuple

#: A brake is applied when this share of the last ends were failures, out of at least this many. If a
#: dependency answers more often than that, braking would get less done.
RECENT_ENDS: Final = 10
FAILED_SHARE: Final = 0.8
LEAST_FAILURES: Final = 5

#: The pause before a try is the time for which the brake has been on, divided by this, within limits: an
#: outage is a quarter longer for the tasks, and one of 20 s costs about twelve tries.
PAUSE_FRACTION: Final = 4
MIN_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0

#: After a start, other runs wait at most this long for its end: its process may be gone, or it takes long.
#: A brake that eases is off once nothing has run for as long.
AWAITED_SECONDS: Final = 60.0

#: For the first day, a try that fails costs its message no attempt. After that, attempts count, so that
#: messages that can never succeed are given up.
FORGIVEN_SECONDS: Final = 86_400.0

#: How many runs may go on together after the first success; each further one adds one, a failure halves them.
FIRST_TOGETHER: Final = 2


class Stage(enum.Enum):
    """Stages of a brake."""

    OFF = "all runs may start"
    ON = "one run is tried after each pause"
    EASING = "a try has succeeded, and more runs may go on together with each success"


class Start(NamedTuple):
    """The start of a run: the number of its stage, and whether a failure costs no attempt."""

    number: int
    forgiven: bool


class Brake:
    """Decides for one dependency which runs may start. Not thread-safe; instants are monotonic.

    Attributes:
        stage: the current stage.
        began: when that stage began.
        since: when the brake was applied, kept while it eases; `None` if it is off.
        tries: number of runs tried since then.
        may_try: whether this worker may try, rather than another one of the fleet.
    """

    def __init__(self) -> None:
        self.stage = Stage.OFF
        self.began = -math.inf
        self.since: float | None = None
        self.tries = 0
        self.may_try = True
        self._number = 0  # of the stage: ends of runs that began in another one say nothing about this one
        self._failures: deque[bool] = deque(maxlen=RECENT_ENDS)
        self._together = 0
        self._limit = 0
        self._next_start = -math.inf

    def start(self, now: float) -> Start | None:
        """Let a run start. Returns a value to pass to `end`, or `None` if the run must wait."""
        match self.stage:
            case Stage.ON if not self.may_try or now < self._next_start:
                return None
            case Stage.EASING if self._together >= self._limit and now < self._next_start:
                return None
        self._together += 1
        self._next_start = now + AWAITED_SECONDS
        if self.stage is Stage.ON:
            self.tries += 1
        return Start(self._number, self.stage is Stage.ON and self.lasted(now) < FORGIVEN_SECONDS)

    def is_current(self, start: Start | None) -> bool:
        """Whether a run that `start` allowed may still begin."""
        return start is not None and start.number == self._number

    def end(self, start: Start, failed: bool | None, now: float) -> None:  # noqa: FBT001
        """Note how a run ended: whether the dependency `failed` it; `None` if its end says nothing."""
        if not self.is_current(start):
            return
        self._together -= 1
        if failed is None:
            self._next_start = now  # another takes its place
            return
        self._failures.append(failed)
        match self.stage:
            case Stage.OFF if sum(self._failures) >= LEAST_FAILURES and self._most_failed:
                self.apply(now)
            case Stage.ON if failed:
                self._next_start = now + self.pause(now)
            case Stage.ON:
                self.ease(now)
            case Stage.EASING if self._most_failed:
                self.apply(now)
            case Stage.EASING if len(self._failures) == RECENT_ENDS:
                self._begin(Stage.OFF, now)
            case Stage.EASING:
                self._limit = max(1, self._limit // 2) if failed else self._limit + 1

    @property
    def _most_failed(self) -> bool:
        return sum(self._failures) >= FAILED_SHARE * len(self._failures)

    def lasted(self, now: float) -> float:
        """Seconds since it was applied; 0 if it is off."""
        return 0.0 if self.since is None else now - self.since

    def pause(self, now: float) -> float:
        """Seconds from a try that failed now to the next one; the shortest pause if the brake is off."""
        return min(max(self.lasted(now) / PAUSE_FRACTION, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)

    def apply(self, now: float) -> None:
        """Apply the brake, or apply it again while it eases."""
        if self.since is None:
            self.since, self.tries = now, 0
        self._begin(Stage.ON, now)
        self._next_start = now + self.pause(now)

    def ease(self, now: float) -> None:
        """Let more runs start, because one has succeeded, here or in another worker."""
        self._begin(Stage.EASING, now)
        self._failures.append(False)
        self._limit = FIRST_TOGETHER
        self._next_start = now + AWAITED_SECONDS

    def release_if_quiet(self, now: float) -> None:
        """Release the brake if it eases, nothing runs, and nothing has started for a minute."""
        if self.stage is Stage.EASING and not self._together and now >= self._next_start:
            self._begin(Stage.OFF, now)

    def _begin(self, stage: Stage, now: float) -> None:
        self.stage, self.began = stage, now
        self.since = None if stage is Stage.OFF else self.since
        self._number += 1
        self._failures.clear()
        self._together = 0
        self._next_start = math.inf
        self.may_try = True
