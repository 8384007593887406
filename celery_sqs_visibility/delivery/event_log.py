"""The log as a listener: constant sentences, facts as fields, the frequent ones at DEBUG.

Read for one message id, it answers: did the process die during the run (Started without Finished or
Failed)? Did the run not begin (Unreadable, Parked)? How often did it fail, and when does it come back
(Failed, Hidden)?
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.recent_keys import RecentKeys
from celery_sqs_visibility.events import DeliveryEvent, Hidden, Unreadable, subscribe, subscribed

logger = logging.getLogger("celery_sqs_visibility")

_SENTENCES: dict[type[DeliveryEvent], tuple[int, str]] = {
    events.Received: (logging.DEBUG, "message received (%s)"),
    events.Started: (logging.DEBUG, "task started (%s)"),
    events.Extended: (logging.DEBUG, "message extended (%s)"),
    events.Finished: (logging.DEBUG, "task finished (%s)"),
    events.Deleted: (logging.DEBUG, "message deleted (%s)"),
    events.Failed: (logging.INFO, "task failed (%s)"),
    events.Hidden: (logging.INFO, "message hidden (%s)"),
    events.Parked: (logging.INFO, "message parked until its ETA (%s)"),
    events.Renewed: (logging.INFO, "message goes on waiting for its ETA as a copy (%s)"),
    events.Released: (logging.INFO, "message released (%s)"),
    events.DeadLettered: (logging.ERROR, "message moved to the dead-letter queue (%s)"),
    events.Unreadable: (logging.ERROR, "message is no task for this worker (%s)"),
    events.Superseded: (logging.WARNING, "message came back while held here, and is not run twice (%s)"),
    events.FinishedBefore: (logging.WARNING, "message came back though finished here, and is deleted (%s)"),
    events.Lost: (logging.WARNING, "message lost: another worker may run it too (%s)"),
}

#: Ids of messages that were logged as unreadable: that each is hidden after every receive is at DEBUG.
_unreadable: RecentKeys[str] = RecentKeys(10_000)


class Fields(dict[str, object]):
    """Facts that print as `key=value` for a plain log, and are a mapping for a structured one."""

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.items() if value is not None)


def log_event(event: DeliveryEvent) -> None:
    """Write one event to the logger `celery_sqs_visibility`; the fields are also the record's `sqs`."""
    level, sentence = _SENTENCES[type(event)]
    if isinstance(event, Unreadable):
        _unreadable.add(event.delivery.message_id)
    elif isinstance(event, Hidden) and event.delivery.message_id in _unreadable:
        level = logging.DEBUG
    if logger.isEnabledFor(level):
        values = asdict(event)
        facts = Fields({**values.pop("delivery"), **values})  # those of the delivery first
        logger.log(level, sentence, facts, extra={"sqs": facts})


def listen() -> None:
    """Write every event from now on; harmless if it is done already."""
    if not subscribed(log_event):
        subscribe(log_event)
