"""What happened to a task, from workers' answers and from lines of JSON logs. Both have the same fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import MESSAGE_OF, MESSAGES
from celery_sqs_visibility.operate.figures import duration_text

#: Too many to be read, and without news.
LEFT_OUT: Final = frozenset({MESSAGE_OF[events.Extended]})

#: A word each; the others are sentences already.
TOLD: Final = {
    MESSAGE_OF[events.Parked]: "parked",
    MESSAGE_OF[events.Renewed]: "waits as a copy",
    MESSAGE_OF[events.DeadLettered]: "dead letter",
}


def of_answers(answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events in workers' answers to `sqs_held`."""
    return [{"node": node, **each} for node, answer in answers.items() for each in answer.get("history", ())]


def fields_of_line(line: str) -> dict[str, Any] | None:
    """The fields of a line of a JSON log, and `at` in seconds since the epoch; `None` of another line."""
    try:
        fields = json.loads(line)
        return {"at": datetime.fromisoformat(fields["timestamp"]).timestamp(), **fields}
    except (ValueError, TypeError, KeyError):
        return None


def is_event(fields: Mapping[str, Any]) -> bool:
    """Whether a line tells of an event of a message."""
    return fields.get("message") in MESSAGES and bool(fields.get("message_id"))


def of_lines(lines: Iterable[str], task_id: str) -> list[dict[str, Any]]:
    """The events of a task in lines of JSON. Lines of another form or task are passed over."""
    found = (fields_of_line(line) for line in lines if task_id in line)
    return [
        each
        for each in found
        if each and each.get("task_id") == task_id and is_event(each) and each["message"] not in LEFT_OUT
    ]


def merged(*histories: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All events, oldest first, each once, though a worker and its log both tell of it."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in (event for history in histories for event in history):
        names = ("node", "message", "message_id", "receive_count", "attempt")
        kept.setdefault(tuple(each.get(name) for name in names), each)
    return sorted(kept.values(), key=lambda event: event["at"])


def event_text(event: Mapping[str, Any]) -> str:
    """An event as a line for people, its time in UTC."""
    at = f"{datetime.fromtimestamp(event['at'], UTC):%Y-%m-%dT%H:%M:%SZ}"
    facts = []
    if event.get("attempt") is not None:
        facts.append(f"attempt {event['attempt']}")
    if event.get("seconds") is not None:
        facts.append(f"for {duration_text(event['seconds'])}")
    what = ", ".join([TOLD.get(event["message"], event["message"]), *facts])
    why = event.get("error") or event.get("reason")
    return f"{at}  {event.get('node', '-')}  {what}" + (f": {why}" if why else "")
