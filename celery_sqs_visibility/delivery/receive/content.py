"""Content of a received message, as the wire format's codec gives it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

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


def loggable(text: Text) -> Text:
    """Text from a message, if there is one, fit to be logged and sent as an attribute of a dead letter."""
    if text is None:
        return text
    if len(text) <= MAX_TEXT_CHARACTERS and text.isprintable():  # as most are
        return text
    shown = text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:MAX_TEXT_CHARACTERS]}..."
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", shown)
