"""What happened to a task, from workers' answers and from JSON log lines, which have the same fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import MESSAGE_OF, MESSAGES
from celery_sqs_visibility.operate.figures import duration_text

#: Events that are too frequent to be shown, and say nothing new.
LEFT_OUT: Final = frozenset({MESSAGE_OF[events.Extended]})

#: Sentences that are shortened to a word or two.
TOLD: Final = {
    MESSAGE_OF[events.Parked]: "parked",
    MESSAGE_OF[events.Renewed]: "waits as a copy",
    MESSAGE_OF[events.DeadLettered]: "dead letter",
}


def of_answers(answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events in workers' answers to `sqs_held`."""
    return [{"node": node, **each} for node, answer in answers.items() for each in answer.get("history", ())]


def fields_of_line(line: str) -> dict[str, Any] | None:
    """The fields of a JSON log line, and `at` in seconds since the epoch; `None` for any other line."""
    try:
        fields = json.loads(line)
        return {"at": datetime.fromisoformat(fields["timestamp"]).timestamp(), **fields}
    except (ValueError, TypeError, KeyError):
        return None


def is_event(fields: Mapping[str, Any]) -> bool:
    """Whether a line is about an event of a message."""
    return fields.get("message") in MESSAGES and bool(fields.get("message_id"))


def of_lines(lines: Iterable[str], task_id: str) -> list[dict[str, Any]]:
    """The events of a task in JSON lines. Other lines are skipped."""
    found = (fields_of_line(line) for line in lines if task_id in line)
    return [
        each
        for each in found
        if each and each.get("task_id") == task_id and is_event(each) and each["message"] not in LEFT_OUT
    ]


def merged(*histories: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All events, oldest first, without duplicates from a worker and its log."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in (event for history in histories for event in history):
        names = ("node", "message", "message_id", "receive_count", "attempt")
        kept.setdefault(tuple(each.get(name) for name in names), each)
    return sorted(kept.values(), key=lambda event: event["at"])


def event_text(event: Mapping[str, Any]) -> str:
    """An event as a line of text, with its time in UTC."""
    at = f"{datetime.fromtimestamp(event['at'], UTC):%Y-%m-%dT%H:%M:%SZ}"
    facts = []
    if event.get("attempt") is not None:
        facts.append(f"attempt {event['attempt']}")
    if event.get("seconds") is not None:
        facts.append(f"for {duration_text(event['seconds'])}")
    if event.get("cause"):
        facts.append(f"cause {event['cause']}")
    what = ", ".join([TOLD.get(event["message"], event["message"]), *facts])
    why = event.get("error") or event.get("reason")
    return f"{at}  {event.get('node', '-')}  {what}" + (f": {why}" if why else "")
