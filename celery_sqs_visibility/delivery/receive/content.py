"""Content of a received message, as the codec returns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.policy.printable import UNPRINTABLE

#: Text, or text that may be missing.
Text = TypeVar("Text", str, str | None)

#: Characters to keep of a reason or a name: SQS counts a dead letter's attributes as part of its size.
MAX_TEXT_CHARACTERS: Final = 500


class DecodedMessage(NamedTuple):
    """A message's payload, and the task's name, id, ETA and retries, if its headers have them.

    Name and id may be any text that the sender chose. Deliveries store them made `loggable`.
    """

    payload: dict[str, Any]  # for kombu's `Message`
    task: str | None = None
    task_id: str | None = None
    eta: float | None = None  # seconds since the epoch
    retries: int = 0


class Records(NamedTuple):
    """An event with several records, each of which is sent on as a message of its own.

    Attributes:
        messages: each is made when it is read.
        body: the body of the event's message, as SQS has it.
        remainder: makes one message of the records at the given indices, in order; returns `None` if there
            can be none.
    """

    messages: Sequence[OutgoingMessage]
    body: str
    remainder: Callable[[Sequence[int]], OutgoingMessage | None] = lambda _indices: None


def loggable(text: Text) -> Text:
    """Return text of a message in a form fit for the log and for an attribute of a dead letter."""
    if text is None:
        return text
    if len(text) <= MAX_TEXT_CHARACTERS and text.isprintable():  # the usual case
        return text
    shown = text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:MAX_TEXT_CHARACTERS]}..."
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", shown)
