"""Received dead letters: their contents, filters for them, groups of them, and how they are printed."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import click
from kombu.serialization import loads

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.awaited_payloads import fetch
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.delivery.receive.content import DecodedMessage
from celery_sqs_visibility.delivery.receive.decoder import SOURCE_ARN
from celery_sqs_visibility.delivery.settle.dead_letters import described, of_the_sender
from celery_sqs_visibility.errors import SQSVisibilityError, UnreadableError
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import say, show_table
from celery_sqs_visibility.policy.message_limits import truncated
from celery_sqs_visibility.policy.payload_pointers import (
    NO_PAYLOADS,
    PayloadPointer,
    ReadablePayloads,
    pointer_in,
)
from celery_sqs_visibility.policy.printable import printable
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.content_bounds import check_content, inflate

#: Content types that are decoded here. Not pickle, which would run code.
READABLE_CONTENT_TYPES: Final = frozenset({"application/json", "application/x-yaml", "application/x-msgpack"})

#: A number of attempts, which anybody may have written: int() refuses "²", which isdigit() accepts.
NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)

#: Characters of an id that a table shows, and that are enough to identify a message.
SHORT_ID_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    Attributes:
        message: as it was received, with all attributes.
        content: the task's message, why there is none, or where it is in S3.
    """

    message: ReceivedMessage
    content: DecodedMessage | UnreadableError | PayloadPointer

    @property
    def id(self) -> str:
        """SQS's id of the message in the dead-letter queue."""
        return self.message["MessageId"]

    @property
    def system(self) -> Mapping[str, str]:
        """The system attributes."""
        return self.message.get("Attributes", {})

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The message attributes."""
        return self.message.get("MessageAttributes", {})

    @property
    def details(self) -> dict[str, str]:
        """Facts that a worker has written into it; empty if SQS moved the message."""
        return {} if SOURCE_ARN in self.system else described(self.attributes)

    @property
    def task(self) -> str | None:
        """The task's name, if known."""
        return self.details.get("task") or getattr(self.content, "task", None)

    @property
    def task_id(self) -> str | None:
        """The task's id, if known."""
        return self.details.get("task_id") or getattr(self.content, "task_id", None)

    @property
    def reason(self) -> str | None:
        """Why the message was given up."""
        if reason := self.details.get("reason"):
            return reason
        if isinstance(self.content, UnreadableError):
            return str(self.content)
        moved = "received as often as maxReceiveCount allows, and moved by SQS"
        return moved if SOURCE_ARN in self.system else None

    @property
    def source(self) -> str | None:
        """The queue in which it was given up: Celery's name or, if SQS moved it, SQS's."""
        return self.details.get("source_queue") or self.system.get(SOURCE_ARN, "").rpartition(":")[2] or None

    @property
    def sent(self) -> float:
        """When the message was given up, or sent if SQS moved it; seconds since the epoch by SQS's clock."""
        return int(self.system.get("SentTimestamp", 0)) / 1000

    @property
    def names(self) -> set[str]:
        """The ids of the letter, its task and the message that was given up, whole and abbreviated."""
        whole = (self.id, self.task_id, self.details.get("message_id"))
        return {name for text in whole if text for name in (text, text[:SHORT_ID_CHARACTERS])}

    def age(self, now: float) -> float:
        """Seconds since `sent`."""
        return max(0.0, now - self.sent)

    def summary(self, now: float) -> dict[str, Any]:
        """The letter's facts for a list."""
        attempts = self.details.get("attempts", "")
        return {
            "id": self.id,
            "task": self.task,
            "task_id": self.task_id,
            "exception": self.details.get("exception"),
            "reason": self.reason,
            "attempts": int(attempts) if NUMBER.fullmatch(attempts) else None,
            "age_seconds": round(self.age(now)),
            "source_queue": self.source,
            "worker": self.details.get("worker"),
        }


def read_letter(queue: Queue, message: ReceivedMessage, readable: ReadablePayloads) -> Letter:
    """Decode a received message, which may point to one of the `readable` payloads. Makes no request."""
    content: DecodedMessage | UnreadableError | PayloadPointer
    try:
        content = pointer_in(
            message["Body"], message.get("MessageAttributes", {}), readable
        ) or decode_message(queue, message)
    except UnreadableError as error:
        content = error
    return Letter(message, content)


def arguments(payload: Mapping[str, Any]) -> Any:
    """The decoded body of a task's message: arguments, keyword arguments and embedded options.

    Raises:
        Exception: it can't be decoded, or its content type is not in `READABLE_CONTENT_TYPES`.
    """
    body: Any = payload.get("body") or ""
    if payload["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if method := (payload.get("headers") or {}).get("compression"):
        body = inflate(body, method)
    kind, encoding = (str(payload.get(name) or "") for name in ("content-type", "content-encoding"))
    accept = set(READABLE_CONTENT_TYPES)
    check_content(body, kind, encoding, accept)
    return loads(body, kind, encoding, accept=accept)


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters for dead letters.

    Attributes:
        ids: of messages or tasks, or the first eight characters of an id.
        task: a glob for the task's name.
        exception: a glob for the exception: its class, with or without module, or class and text.
        older_than: seconds.
        newer_than: seconds.
        sources: names of the queue in which they were given up; `None` for any. A letter that names no queue
            matches any.
    """

    ids: Collection[str] = ()
    task: str | None = None
    exception: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    sources: Collection[str] | None = None

    def is_of_source(self, letter: Letter) -> bool:
        """Returns whether the letter was given up in one of `sources`."""
        return self.sources is None or letter.source is None or letter.source in self.sources

    def ids_of(self, letter: Letter) -> set[str]:
        """The selected ids that identify the letter."""
        return letter.names.intersection(self.ids)

    def matches(self, letter: Letter, now: float) -> bool:
        """Returns whether the letter passes all filters; `now` is in seconds since the epoch."""
        age = letter.age(now)
        return (
            self.is_of_source(letter)
            and (not self.ids or bool(self.ids_of(letter)))
            and (self.task is None or fnmatchcase(letter.task or "", self.task))
            and (self.exception is None or _matches(letter.details.get("exception", ""), self.exception))
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age < self.newer_than)
        )


def class_of(exception: str) -> str:
    """The class in an exception's text `module.Class: text`."""
    return exception.partition(":")[0]


def _matches(exception: str, glob: str) -> bool:
    kind = class_of(exception)
    return any(fnmatchcase(text, glob) for text in (exception, kind, kind.rpartition(".")[2]))


def show_letters(summaries: Sequence[dict[str, Any]]) -> None:
    """Print a table, one letter a line."""
    rows = [
        [
            letter["id"][:SHORT_ID_CHARACTERS],
            *(cell(letter[name]) for name in ("task", "exception", "reason")),
            letter["attempts"],
            duration_text(letter["age_seconds"]),
            cell(letter["source_queue"]),
            cell(letter["worker"]),
        ]
        for letter in summaries
    ]
    columns = ["id", "task", "exception", "reason", "attempts", "age", "source queue", "worker"]
    show_table(columns, rows)


def cell(text: str | None) -> str | None:
    """A text in the form of a short line for a table."""
    return None if text is None else truncated(" ".join(text.split()), 40)


#: What letters can be grouped by: members of their summaries.
GROUPING: Final = ("exception", "task", "reason", "source_queue", "worker")


def grouping(text: str) -> tuple[str, ...]:
    """The type of an option: some of `GROUPING`, separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := set(names) - set(GROUPING):
        raise click.BadParameter(
            f"expected some of {', '.join(GROUPING)}, separated by commas, got {', '.join(sorted(unknown))!r}"
        )
    return names


def grouped(summaries: Iterable[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Group letters by these members of their summaries, the largest group first.

    A group has these members, `count`, the ages `oldest_seconds` and `newest_seconds`, and as `example` the
    id of its newest letter. Exceptions are compared by their class only.
    """
    groups: defaultdict[tuple[str | None, ...], list[dict[str, Any]]] = defaultdict(list)
    for letter in summaries:
        common = {**letter, "exception": class_of(letter["exception"] or "") or None}
        groups[tuple(common[name] for name in by)].append(letter)
    found = [_group(dict(zip(by, values, strict=True)), letters) for values, letters in groups.items()]
    return sorted(found, key=lambda group: (-group["count"], -group["oldest_seconds"]))


def _group(common: dict[str, str | None], letters: list[dict[str, Any]]) -> dict[str, Any]:
    def age(letter: dict[str, Any]) -> int:
        return int(letter["age_seconds"])

    newest = min(letters, key=age)
    return {
        **common,
        "count": len(letters),
        "oldest_seconds": max(map(age, letters)),
        "newest_seconds": age(newest),
        "example": newest["id"],
    }


def show_groups(groups: Iterable[dict[str, Any]], by: Sequence[str]) -> None:
    """Print a table, one group a line."""
    rows = [
        [
            *(cell(group[name]) for name in by),
            group["count"],
            duration_text(group["oldest_seconds"]),
            duration_text(group["newest_seconds"]),
            group["example"][:SHORT_ID_CHARACTERS],
        ]
        for group in groups
    ]
    show_table([*(name.replace("_", " ") for name in by), "count", "oldest", "newest", "example"], rows)


def letter_facts(letter: Letter, queue: Queue, payloads: PayloadStore | None, now: float) -> dict[str, Any]:
    """All facts of a letter in that dead-letter queue. Fetches a payload from S3."""
    content, problem = letter.content, None
    if isinstance(content, PayloadPointer) and payloads is not None:
        try:
            body = fetch(payloads.objects, content, lambda: None)
            without = {**letter.message, "Body": body, "MessageAttributes": {}}
            content = read_letter(queue, without, NO_PAYLOADS).content  # type: ignore[arg-type] # a TypedDict
        except SQSVisibilityError as error:
            problem = str(error)
    task = _task(content) if isinstance(content, DecodedMessage) else {"unreadable": problem or str(content)}
    summary = letter.summary(now)
    return {
        **summary,
        **{name: text for name, text in letter.details.items() if name not in summary},
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


def show_facts(facts: dict[str, Any]) -> None:
    """Print the facts of a letter, one a line, each once. Traceback and body are printed as they are."""
    for name, value in facts.items():
        if name in {"args", "kwargs"}:  # as `message --args` takes them
            say(f"{name}: {json.dumps(value, default=str, ensure_ascii=False)}")
        elif isinstance(value, dict):
            new = {
                k: each for k, each in value.items() if each is not None and str(facts.get(k)) != str(each)
            }
            say("\n  ".join([f"{name}:", *(printable(f"{key}: {each}") for key, each in new.items())]))
        elif value is not None:
            between = "\n" if "\n" in str(value) else " "
            say(f"{name}:{between}{value}")
