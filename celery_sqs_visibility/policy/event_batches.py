"""Celery's events on their way to a monitor: which of them share a message.

Celery publishes an event as a JSON object, or a list of them, and a receiver takes either
(celery/events/receiver.py: `EventReceiver._receive`). So a message has as many events as there are at hand:
they share a request and a receive.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: The bodies of one request. As text within JSON they fit into 256 KiB, whatever they have.
BATCH_BYTES: Final = 120 * 1024


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One or several events, as JSON; `headers` name their sender."""

    body: str
    headers: Mapping[str, Any]

    @property
    def events(self) -> int:
        """How many events it has."""
        content = json.loads(self.body)
        return len(content) if isinstance(content, list) else 1


def bytes_of(messages: Iterable[EventMessage]) -> int:
    """Bytes of their bodies, which are ASCII."""
    return sum(len(message.body) for message in messages)


def take_batch(waiting: deque[EventMessage]) -> list[EventMessage]:
    """Take the content of one request from those that wait, the first ones, merged."""
    groups: list[list[EventMessage]] = []
    free_bytes = BATCH_BYTES
    while waiting and (not groups or len(waiting[0].body) <= free_bytes):
        if groups and waiting[0].headers == groups[-1][0].headers:
            groups[-1].append(waiting[0])
        elif len(groups) < BATCH_ENTRIES:
            groups.append([waiting[0]])
        else:
            break
        free_bytes -= len(waiting.popleft().body)
    return [_merged(group) for group in groups]


def _merged(group: list[EventMessage]) -> EventMessage:
    if len(group) == 1:
        return group[0]
    texts = [message.body.strip() for message in group]
    inner = [text[1:-1] if text.startswith("[") else text for text in texts]
    return replace(group[0], body=f"[{','.join(filter(None, inner))}]")
