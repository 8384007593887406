"""Outcomes of an invocation's messages, as log lines from which CloudWatch makes metrics."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from celery_sqs_visibility.events import DeadLettered, DeliveryEvent, Received, log_safely, subscribe
from celery_sqs_visibility.measurements import DeliveryEnded
from celery_sqs_visibility.operate.metrics.emf import LOGGER, document, prepare_logger
from celery_sqs_visibility.policy.clock import Clock


@contextmanager
def count_invocation(clock: Clock) -> Iterator[None]:
    """Count what happens within, and write a line for each queue at its end. One thread."""
    prepare_logger()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(name: str, event: DeliveryEvent | DeliveryEnded) -> None:
        counts[event.delivery.queue][name] += 1

    ends = [
        subscribe(partial(count, "MessagesReceived"), Received),
        subscribe(partial(count, "DeadLettered"), DeadLettered),
        subscribe(lambda event: count(f"Tasks{event.outcome.capitalize()}", event), DeliveryEnded),
    ]
    try:
        yield
    finally:
        for end in ends:
            end()
        for queue, values in counts.items():
            line = json.dumps(document(queue, values, clock.wall()), separators=(",", ":"))
            log_safely(LOGGER.info, line)
