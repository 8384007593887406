"""Content of a received message, as the wire format's codec gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.policy.printable import UNPRINTABLE

#: Text, or text that may be missing.
Text = TypeVar("Text", str, str | None)

#: Characters to keep of a reason or a name; SQS counts a dead letter's attributes as part of its size.
MAX_TEXT_CHARACTERS: Final = 500


class DecodedMessage(NamedTuple):
    """A message's content; the task's name and id, its ETA and retries, as far as the headers tell.

    Its sender may have given any text as name and id: deliveries have them as `loggable` makes them.
    """

    payload: dict[str, Any]  # kombu makes its `Message` of it
    task: str | None = None
    task_id: str | None = None
    eta: float | None = None  # seconds since the epoch
    retries: int = 0


class Records(NamedTuple):
    """An event of several records, of which each goes on as a message of its own.

    Attributes:
        messages: each is made when it is asked for.
        body: of the event's message, as SQS has it.
        remainder: makes the one message that stands for the records at the given indices, in order; `None`
            where there can be none.
    """

    messages: Sequence[OutgoingMessage]
    body: str
    remainder: Callable[[Sequence[int]], OutgoingMessage | None] = lambda _indices: None


def loggable(text: Text) -> Text:
    """Text from a message, if there is one, fit to be logged and sent as an attribute of a dead letter."""
    if text is None:
        return text
    if len(text) <= MAX_TEXT_CHARACTERS and text.isprintable():  # as most are
        return text
    shown = text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:MAX_TEXT_CHARACTERS]}..."
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", shown)
