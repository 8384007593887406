"""Printed forms of dead letters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from celery_sqs_visibility.delivery.awaited_payloads import fetch
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.delivery.receive.decoder import DecodedMessage
from celery_sqs_visibility.delivery.settle.dead_letters import of_the_sender
from celery_sqs_visibility.errors import SQSVisibilityError
from celery_sqs_visibility.operate.dead_letters.letter import (
    SHORT_ID_CHARACTERS,
    Letter,
    arguments,
    read_letter,
)
from celery_sqs_visibility.operate.dead_letters.session import Place
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import say, show_table
from celery_sqs_visibility.policy.message_limits import beginning
from celery_sqs_visibility.policy.payload_pointers import NO_PAYLOADS, PayloadPointer
from celery_sqs_visibility.policy.printable import printable

COLUMNS: Final = ["id", "task", "exception", "reason", "attempts", "age", "source queue", "worker"]

#: Facts that are printed as `message --args` takes them.
AS_JSON: Final = ("args", "kwargs")

#: Characters of a cell.
CELL_CHARACTERS: Final = 40


def show_letters(summaries: Sequence[dict[str, Any]]) -> None:
    """A table, one letter a line."""
    rows = [
        [
            letter["id"][:SHORT_ID_CHARACTERS],
            *(_cell(letter[name]) for name in ("task", "exception", "reason")),
            letter["attempts"],
            duration_text(letter["age_seconds"]),
            _cell(letter["source_queue"]),
            _cell(letter["worker"]),
        ]
        for letter in summaries
    ]
    show_table(COLUMNS, rows)


def _cell(text: str | None) -> str | None:
    return None if text is None else beginning(" ".join(text.split()), CELL_CHARACTERS)


def whole(letter: Letter, place: Place, payloads: PayloadStore | None, now: float) -> dict[str, Any]:
    """All facts of a letter, `now` in seconds since the epoch. A payload in S3 is fetched."""
    content, problem = letter.content, None
    if isinstance(content, PayloadPointer) and payloads is not None:
        try:
            body = fetch(payloads.objects, content, lambda: None)
            without = {**letter.message, "Body": body, "MessageAttributes": {}}
            content = read_letter(place.letters, without, NO_PAYLOADS).content  # type: ignore[arg-type] # a TypedDict
        except SQSVisibilityError as error:
            problem = str(error)
    task = _task(content) if isinstance(content, DecodedMessage) else {"unreadable": problem or str(content)}
    summary = letter.summary(now)
    return {
        **summary,
        **{name: text for name, text in letter.said.items() if name not in summary},
        **task,
        "message_attributes": {
            name: value.get("StringValue") for name, value in of_the_sender(letter.attributes).items()
        },
        "system_attributes": dict(letter.system),
        "body": letter.message["Body"],
    }


def _task(content: DecodedMessage) -> dict[str, Any]:
    headers = content.payload.get("headers") or {}
    try:
        body = arguments(content.payload)
    except Exception as error:  # noqa: BLE001 - a decoder's own
        return {"unreadable": f"its arguments cannot be decoded here: {error}", "headers": headers}
    if isinstance(body, dict):  # Celery's protocol 1
        return {"args": body.get("args"), "kwargs": body.get("kwargs"), "headers": headers}
    args, kwargs, embedded = [*body, None, None, None][:3] if isinstance(body, list) else (body, None, None)
    return {"args": args, "kwargs": kwargs, "embedded": embedded, "headers": headers}


def show_whole(facts: dict[str, Any]) -> None:
    """A letter, one fact a line, and each once; the traceback and the body as they are."""
    for name, value in facts.items():
        if name in AS_JSON:
            say(f"{name}: {json.dumps(value, default=str, ensure_ascii=False)}")
        elif isinstance(value, dict):
            new = {
                k: each for k, each in value.items() if each is not None and str(facts.get(k)) != str(each)
            }
            say("\n  ".join([f"{name}:", *(printable(f"{key}: {each}") for key, each in new.items())]))
        elif value is not None:
            between = "\n" if "\n" in str(value) else " "
            say(f"{name}:{between}{value}")
