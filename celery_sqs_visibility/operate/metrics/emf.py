"""Log lines in CloudWatch's embedded metric format, of which CloudWatch Logs makes metrics without a request.

See Amazon's CloudWatch User Guide, "Specification: Embedded metric format".
"""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.metrics.recorder import WorkerState
from celery_sqs_visibility.operate.metrics.series import Histogram
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

#: The interval at which each queue gets a line.
INTERVAL_SECONDS: Final = 60.0

#: The number of lines over which the duration of runs is averaged: an hour's.
MEAN_LINES: Final = 60

NAMESPACE: Final = "CelerySQS"
DIMENSION: Final = "Queue"

#: CloudWatch's metrics and their units.
UNITS: Final = {
    "Workers": "Count",
    "Slots": "Count",
    "SlotsBusy": "Count",
    "Backlog": "Count",
    "Work": "Seconds",
    "InFlight": "Count",
    "Delayed": "Count",
    "DeadLetters": "Count",
    "OldestAge": "Seconds",
    # An invocation of a Lambda function, by the outcomes of its messages (`events.DeliveryEnded`).
    "MessagesReceived": "Count",
    "DeadLettered": "Count",
    "TasksSucceeded": "Count",
    "TasksRetried": "Count",
    "TasksFailed": "Count",
    "TasksLost": "Count",
    "TasksReleased": "Count",
    "TasksSkipped": "Count",
    "TasksDelayed": "Count",
    "TasksDiscarded": "Count",
}

#: The logger of lines that are only JSON, which other handlers would change.
LOGGER: Final = logging.getLogger("celery_sqs_visibility.emf")


def document(queue: str, values: Mapping[str, float], at: float) -> dict[str, Any]:
    """One queue's metrics at an instant, in seconds since the epoch."""
    metrics = [{"Name": name, "Unit": UNITS[name]} for name in values]
    directive = {"Namespace": NAMESPACE, "Dimensions": [[DIMENSION]], "Metrics": metrics}
    return {
        "_aws": {"Timestamp": int(at * 1000), "CloudWatchMetrics": [directive]},
        DIMENSION: queue,
        **values,
    }


def values_of(
    state: WorkerState, depth: QueueDepth | None, run_seconds: float | None = None
) -> dict[str, float]:
    """One worker's figures of a queue. `Workers` is 1, so that CloudWatch can add them up.

    Without `run_seconds`, the mean duration of runs, the work in a backlog is unknown.
    """
    values: dict[str, float | None] = {"Workers": 1, "Slots": state.slots, "SlotsBusy": state.busy}
    if depth is not None:
        values |= {
            "Backlog": depth.visible,
            "Work": depth.visible and (None if run_seconds is None else depth.visible * run_seconds),
            "InFlight": depth.in_flight,
            "Delayed": depth.delayed,
            "DeadLetters": depth.dead_letters,
            "OldestAge": depth.oldest_age_seconds,
        }
    return {name: value for name, value in values.items() if value is not None}


class RunSeconds:
    """Mean duration of each queue's runs over `MEAN_LINES` readings, or the last known one. One thread."""

    def __init__(self, runs: Histogram) -> None:
        self._runs = runs  # by task, queue and outcome
        self._past: deque[dict[str, tuple[int, float]]] = deque([{}], MEAN_LINES)  # numbers and sums by queue
        self._means: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """The means in seconds, by queue. Call it once for each line."""
        now: dict[str, tuple[int, float]] = {}
        for (_, queue, _), (counts, total) in self._runs.read().items():
            number, seconds = now.get(queue, (0, 0.0))
            now[queue] = number + sum(counts), seconds + total
        for queue, (number, seconds) in now.items():
            number_before, seconds_before = self._past[0].get(queue, (0, 0.0))
            if number > number_before:
                self._means[queue] = (seconds - seconds_before) / (number - number_before)
        self._past.append(now)
        return self._means


def write_lines(
    queues: Iterable[str],
    state: WorkerState,
    depths: Iterable[QueueDepth],
    run_seconds: Mapping[str, float],
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Write a line for each queue, with the depths and the durations of runs that are known."""
    now, by_queue = clock.wall(), {depth.queue: depth for depth in depths}
    for queue in queues:
        values = values_of(state, by_queue.get(queue), run_seconds.get(queue))
        LOGGER.info(json.dumps(document(queue, values, now), separators=(",", ":")))


def prepare_logger() -> None:
    """Send lines to standard output unchanged, unless the app has given the logger a handler."""
    LOGGER.propagate = False
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers:
        handler = logging.StreamHandler(sys.__stdout__)  # not Celery's stdout, which logs what it gets
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOGGER.addHandler(handler)
