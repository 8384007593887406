"""Routes from AWS's events to tasks: the task attribute `sqs_event`, and the table of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import OneOf

#: At the end of a pattern: any further characters.
ANY: Final = "*"

#: `s3:ObjectCreated:Put` and `sns:topic`, or EventBridge's source and detail type, `aws.s3/Object Created`.
PATTERN: Final = re.compile(r"(?:\w+:|[^*/\s]+/)[^*]*\*?")

#: The unit of events for which a task runs once.
RECORD, MESSAGE = "record", "message"
sqs_event_per = OneOf((RECORD, MESSAGE))


@dataclass(frozen=True, slots=True)
class EventRoute:
    """A task that takes events whose names match a pattern, with a run for each message or record."""

    pattern: str
    task: str
    per_message: bool = False

    def fits(self, event: str) -> bool:
        """Returns whether the pattern matches events of that name."""
        if self.pattern.endswith(ANY):
            return event.startswith(self.pattern[: -len(ANY)])
        return event == self.pattern


class EventRoutes:
    """The routes of all tasks. The longest pattern that matches an event wins.

    Raises:
        ValueError: two tasks have the same pattern.
    """

    def __init__(self, routes: Iterable[EventRoute] = ()) -> None:
        self._routes = sorted(routes, key=lambda route: (-len(route.pattern), route.pattern, route.task))
        for one, other in zip(self._routes, self._routes[1:], strict=False):
            if one.pattern == other.pattern:
                raise ValueError(
                    f"the tasks {one.task!r} and {other.task!r} both have sqs_event={one.pattern!r}: give it "
                    "to one task, which calls the other"
                )

    def __bool__(self) -> bool:
        return bool(self._routes)

    def find(self, event: str) -> EventRoute | None:
        """The route of events of that name; `None` if no task takes them."""
        return next((route for route in self._routes if route.fits(event)), None)


def parse_sqs_event(name: str, value: Any) -> tuple[str, ...]:
    """Parse the patterns of a task: one, or a list of them; `None` is none.

    Raises:
        OptionError: names the value and what is allowed.
    """
    if value is None:
        return ()
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, (list, tuple)) or not patterns:
        patterns = (value,)
    for pattern in patterns:
        if not (isinstance(pattern, str) and PATTERN.fullmatch(pattern)):
            raise OptionError(
                f"expected {name} to be an event as 's3:ObjectCreated:*', 'aws.s3/Object Created' "
                f"(EventBridge's source and detail type) or 'sns:topic', or a list of these, got {pattern!r}"
            )
    return tuple(patterns)
