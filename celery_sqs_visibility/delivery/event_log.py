"""Log lines of delivery events: constant sentences, facts as fields, frequent events at DEBUG.

At DEBUG, the lines of one message id tell whether the process died during the run (Started without Finished
or Failed), whether the run never began (Unreadable, Parked), how often it failed and when it comes back
(Failed, Hidden). For a failed attempt users read another line, which has the traceback
(celery_sqs_visibility/task/failure_log.py).
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from weakref import ref

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryEvent, DeliveryFacts, subscribe, subscribed
from celery_sqs_visibility.policy.printable import printable

logger = logging.getLogger("celery_sqs_visibility")

NEAR_HORIZON: Final = (
    "message nears the end of SQS's 12 hours, after which it is run a second time, beside this run: "
    "end the task, or call self.visibility.continue_later() (%s)"
)

_SENTENCES: dict[type[DeliveryEvent], tuple[int, str]] = {
    events.Received: (logging.DEBUG, "message received (%s)"),
    events.Started: (logging.DEBUG, "task started (%s)"),
    events.Extended: (logging.DEBUG, "message extended (%s)"),
    events.Finished: (logging.DEBUG, "task finished (%s)"),
    events.Deleted: (logging.DEBUG, "message deleted (%s)"),
    events.Failed: (logging.DEBUG, "task failed (%s)"),
    events.Hidden: (logging.DEBUG, "message hidden (%s)"),
    events.Skipped: (logging.DEBUG, "task skipped (%s)"),
    events.Parked: (logging.INFO, "message parked until it may run (%s)"),
    events.Renewed: (logging.INFO, "message goes on waiting as a copy (%s)"),
    events.Released: (logging.DEBUG, "message released (%s)"),
    events.DeadLettered: (logging.WARNING, "message moved to the dead-letter queue (%s)"),
    events.Unreadable: (logging.ERROR, "message is no task for this worker (%s)"),
    events.Superseded: (logging.WARNING, "message came back while held here, and is not run twice (%s)"),
    events.FinishedBefore: (logging.WARNING, "message came back though finished here, and is deleted (%s)"),
    events.Lost: (logging.WARNING, "message lost: another worker may run it too (%s)"),
    events.HorizonNear: (logging.WARNING, NEAR_HORIZON),
}

#: The sentence of each event without its fields: the `message` of a JSON line.
MESSAGE_OF: Final = {kind: sentence.removesuffix(" (%s)") for kind, (_, sentence) in _SENTENCES.items()}
MESSAGES: Final = frozenset(MESSAGE_OF.values())

#: Fields that are seconds since the epoch: one is printed as a date in a plain log, the others are left out.
EPOCH_FIELD: Final = "first_received"
UNTOLD_FIELDS: Final = {"received", "sent", "eta"}

#: The latest request, which Celery logs about before `celery.worker.state` has it. Weak, because a run that
#: nothing refers to any more frees its slot (`core/turns.py`).
last_request: Final[deque[ref[Any]]] = deque(maxlen=1)


class Fields(dict[str, object]):
    """Facts of a log line: `key=value` in a plain log, a mapping for a structured one."""

    def __str__(self) -> str:
        texts = {key: _text(key, value) for key, value in self.items() if key not in UNTOLD_FIELDS}
        return printable(" ".join(f"{key}={text}" for key, text in texts.items() if text is not None))


def fields_of(facts: DeliveryFacts, **more: object) -> Fields:
    """The facts of a delivery, for a log line about it."""
    return Fields({**asdict(facts), **more})


def log_event(event: DeliveryEvent) -> None:
    """Log one event to `celery_sqs_visibility`. The record's attribute `sqs` has the fields."""
    level, sentence = _SENTENCES[type(event)]
    if logger.isEnabledFor(level):
        facts = _fields_of_event(event)
        logger.log(level, sentence, facts, extra={"sqs": facts})


def line_of(event: DeliveryEvent) -> dict[str, object]:
    """The sentence of an event as `message`, and its fields, as in a JSON log."""
    return {"message": MESSAGE_OF[type(event)], **_fields_of_event(event)}


def _fields_of_event(event: DeliveryEvent) -> Fields:
    values = asdict(event)
    return Fields({**values.pop("delivery"), **values})  # puts the delivery's facts first


def _text(key: str, value: object) -> str | None:
    if key == "kept" and not value:  # the usual case
        return None
    if key == EPOCH_FIELD and isinstance(value, (int, float)):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%M:%SZ}" if value else None
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return None if value is None else str(value)


def listen() -> None:
    """Log every event from now on. Idempotent."""
    if not subscribed(log_event):
        for kind, (level, _) in _SENTENCES.items():
            subscribe(log_event, kind, partial(logger.isEnabledFor, level))
