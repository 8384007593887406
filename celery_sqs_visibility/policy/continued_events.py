"""Message attribute of an event that continues in another message: its open parts, or the end of its wait.

The body stays the event's own. So a dead letter is the event as it was, whichever message carries it last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.quotas import MESSAGE_ATTRIBUTES

#: The name of the attribute. Its value is a JSON object with the fields of `ContinuedEvent`.
ATTRIBUTE: Final = "continues"

#: The place of a run for the event as a whole. Records have the places 0, 1, ...
WHOLE: Final = -1


@dataclass(frozen=True, slots=True)
class ContinuedEvent:
    """An event that other messages had before this one.

    Attributes:
        message_id: of the first of them, from which the task ids are made.
        next: the place from which on no record was sent.
        also: earlier places whose records were not sent either.
        eta: until when its task waits, in seconds since the epoch.
        retries: the attempts that the messages before this one have used up.
    """

    message_id: str
    next: int = WHOLE
    also: tuple[int, ...] = ()
    eta: float | None = None
    retries: int = 0

    def left(self, place: int) -> bool:
        """Whether the run at that place is this message's."""
        return place >= self.next or place in self.also


def continued_in(attributes: Mapping[str, Any], message_id: str) -> ContinuedEvent:
    """The continuation in the attributes of a received message; without ours it is the event's first message.

    Raises:
        UnreadableError: the value is not of our form.
    """
    value = attributes.get(ATTRIBUTE)
    if value is None:
        return ContinuedEvent(message_id)
    text = value.get("StringValue", "")
    try:
        fields = json.loads(text)
        found = ContinuedEvent(**{**fields, "also": tuple(fields.get("also", ()))})
        numbers = found.next, found.retries, *found.also
        valid = isinstance(found.message_id, str) and all(type(number) is int for number in numbers)
        valid = valid and (found.eta is None or isinstance(found.eta, (int, float)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise UnreadableError(
            f"its message attribute {ATTRIBUTE!r} should be a JSON object as this package writes it, and is "
            f"{text[:100]!r}: send the message without the attribute"
        )
    return found


def without_ours(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sender's attributes."""
    if ATTRIBUTE not in attributes:
        return attributes
    return {name: value for name, value in attributes.items() if name != ATTRIBUTE}


def with_ours(attributes: Mapping[str, Any], event: ContinuedEvent) -> dict[str, Any] | None:
    """The attributes of a message with which the event goes on; `None` where the sender's leave no space."""
    senders = without_ours(attributes)
    if len(senders) >= MESSAGE_ATTRIBUTES:
        return None
    text = json.dumps(asdict(event), separators=(",", ":"))
    return {**senders, ATTRIBUTE: {"DataType": "String", "StringValue": text}}


def unsent_part(event: ContinuedEvent, places: Sequence[int], records: int) -> ContinuedEvent:
    """The event with these places left to send, in order, of so many `records` in all."""
    before, end = list(places), records
    while before and before[-1] == end - 1:
        end = before.pop()
    return replace(event, next=end, also=tuple(dict.fromkeys(before)))
