"""The message attribute of an AWS event that continues in another message: its open records, or its ETA.

The body remains that of the event, so a dead letter shows the original event.
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
    """An event that earlier messages carried.

    Attributes:
        message_id: of the first of these messages; the task ids are derived from it.
        next: records from this place on belong to this message.
        also: earlier places that belong to this message, too.
        eta: of its task, in seconds since the epoch.
        retries: the attempts used up by earlier messages.
    """

    message_id: str
    next: int = WHOLE
    also: tuple[int, ...] = ()
    eta: float | None = None
    retries: int = 0

    def left(self, place: int) -> bool:
        """Returns whether the run at that place belongs to this message."""
        return place >= self.next or place in self.also


def continued_in(attributes: Mapping[str, Any], message_id: str) -> ContinuedEvent:
    """Read the attribute of a received message; without it, the message is the event's first.

    Raises:
        UnreadableError: the value does not have our format.
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
    """The message attributes without ours."""
    if ATTRIBUTE not in attributes:
        return attributes
    return {name: value for name, value in attributes.items() if name != ATTRIBUTE}


def with_ours(attributes: Mapping[str, Any], event: ContinuedEvent) -> dict[str, Any] | None:
    """The attributes of a message that continues the event; `None` if the sender's leave no room."""
    senders = without_ours(attributes)
    if len(senders) >= MESSAGE_ATTRIBUTES:
        return None
    text = json.dumps(asdict(event), separators=(",", ":"))
    return {**senders, ATTRIBUTE: {"DataType": "String", "StringValue": text}}


def unsent_part(event: ContinuedEvent, places: Sequence[int], records: int) -> ContinuedEvent:
    """The event with only these places left, in order, of `records` in total."""
    before, end = list(places), records
    while before and before[-1] == end - 1:
        end = before.pop()
    return replace(event, next=end, also=tuple(dict.fromkeys(before)))
