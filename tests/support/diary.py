"""How tasks in worker processes tell the test what happened, whatever the pool and however they die.

Tasks call `note()`, the test reads with `Diary`. One JSON line an event, appended by a single write:
lines of concurrent processes do not mix, and a SIGKILL after the call cannot undo it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from support.processes import SOON, wait_until

DIARY_VARIABLE = "TASK_DIARY"


def note(event: str, /, **fields: Any) -> None:
    """Append an event, stamped with `time`, `monotonic` and `pid`, to the file `TASK_DIARY` names."""
    entry = {"event": event, "time": time.time(), "monotonic": time.monotonic(), "pid": os.getpid(), **fields}
    descriptor = os.open(os.environ[DIARY_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(entry, default=repr).encode() + b"\n")
    finally:
        os.close(descriptor)


class Diary:
    """The test's view of the file.

    `monotonic` stamps compare across processes on Linux, where the clock counts from boot.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def entries(self, event: str | None = None, **match: Any) -> list[dict[str, Any]]:
        """What was noted so far, in order; only that event, only where all the fields match."""
        wanted = match if event is None else {"event": event, **match}
        return [entry for entry in self._read() if all(entry.get(k) == v for k, v in wanted.items())]

    def count(self, event: str | None = None, **match: Any) -> int:
        return len(self.entries(event, **match))

    def wait_for(
        self, event: str, count: int = 1, timeout: float = SOON, **match: Any
    ) -> list[dict[str, Any]]:
        """Wait until at least that many such entries exist, and return all of them."""
        wait_until(
            lambda: self.count(event, **match) >= count,
            timeout,
            lambda: f"{count} x {event} {match}; the diary has {self._read()}",
        )
        return self.entries(event, **match)

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # Only whole lines: a reader may see a line before its end.
        lines = self.path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]
