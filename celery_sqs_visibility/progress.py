"""Progress of a run, as the state PROGRESS."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

logger = logging.getLogger(__name__)

PROGRESS: Final = "PROGRESS"

#: From one state PROGRESS to the next.
PROGRESS_INTERVAL_SECONDS: Final = 1.0

PERCENT: Final = 100


class ProgressThrottle:
    """Decides when to store: at once, then once a second at the most, and of a known total once a percent.

    Args:
        total: how many items there are, if that is known.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._stored_at: float | None = None
        self._percent: int | None = None

    def is_due(self, current: int, now: float) -> bool:
        """Whether to store at that monotonic instant that `current` items are done; it counts as stored."""
        percent = PERCENT * current // self._total if self._total else None
        if self._stored_at is not None:
            too_soon = now - self._stored_at < PROGRESS_INTERVAL_SECONDS
            if too_soon or (percent is not None and percent == self._percent):
                return False
        self._stored_at, self._percent = now, percent
        return True


class Progress:
    """Stores a run's progress in Celery's result backend, from time to time. The run's own thread.

    A failure to store is logged once, and ends no run. Nothing is stored for a task that ignores its result,
    or is called directly or eagerly.
    """

    def __init__(self, task: Any, request: Any, total: int | None) -> None:
        untold = request.called_directly or request.is_eager or request.ignore_result or task.ignore_result
        # Beyond its last attempt a run leaves STARTED: see `worker.visibility_request`.
        beyond = request.sqs is not None and task.is_beyond_limit(request)
        self._task = None if untold or beyond else task
        self._total = total
        self._throttle = ProgressThrottle(total)
        self._failed = False

    def show(self, current: int, *, last: bool = False) -> None:
        """Show that `current` items are done; the `last` number is stored in any case."""
        if self._task is None or not (last or self._throttle.is_due(current, SYSTEM_CLOCK.monotonic())):
            return
        try:
            self._task.update_state(state=PROGRESS, meta={"current": current, "total": self._total})
        except Exception:
            if not self._failed:
                logger.exception("progress of task %s could not be stored; the run goes on", self._task.name)
            self._failed = True
