"""Diary of a worker process: its events as JSON lines in a file, which the test's process reads.

`celery worker -I celery_sqs_visibility.testing.diary` imports this module, and the variable names the file.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from celery import signals

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryEvent, DeliveryFacts, subscribe
from celery_sqs_visibility.operate.invocation import end_with_parent

#: The environment variable with the file's path.
VARIABLE: Final = "SQS_TESTING_DIARY"

#: The variable with the process that started this one, and after which it ends.
PARENT_VARIABLE: Final = "SQS_TESTING_PARENT"

#: The entry that says that the worker consumes.
READY: Final = "ready"


class Diary:
    """A file with a JSON line for each event. One process writes, another reads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._read_from = 0
        self.is_ready = False

    def write(self, event: DeliveryEvent) -> None:
        """Append an event. Any thread: a line is one write."""
        self._append({"event": type(event).__name__, **asdict(event)})

    def write_ready(self, **_: Any) -> None:
        """Append that the worker consumes."""
        self._append({"event": READY})

    def read(self) -> list[DeliveryEvent]:
        """The events since the last call. `is_ready` is set when the worker consumes."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_from)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_from += len(whole) + len(end)
        return [event for line in whole.splitlines() if (event := self._event(json.loads(line))) is not None]

    def _event(self, entry: dict[str, Any]) -> DeliveryEvent | None:
        name = entry.pop("event")
        if name == READY:
            self.is_ready = True
            return None
        event: DeliveryEvent = getattr(events, name)(DeliveryFacts(**entry.pop("delivery")), **entry)
        return event

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(entry, default=repr).encode() + b"\n")


if path := os.environ.get(VARIABLE):
    _diary = Diary(path)
    subscribe(_diary.write)
    signals.worker_ready.connect(_diary.write_ready, weak=False)
    if parent := os.environ.get(PARENT_VARIABLE):
        end_with_parent(int(parent), partial(os.kill, os.getpid(), signal.SIGTERM))
