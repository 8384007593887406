"""The producer's half of `demo.app`: reads what the worker writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Events:
    """A file of JSON lines that another process is writing."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""

    def new(self) -> list[dict[str, Any]]:
        """What was written since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._file.close()
