"""A result backend that takes its time."""

from __future__ import annotations

import time
from typing import Any

from celery.backends.filesystem import FilesystemBackend

SECONDS = 1.0


class SlowBackend(FilesystemBackend):
    """`result_backend = "support.slow_results:SlowBackend+file:///..."`: each write takes a second."""

    def set(self, key: bytes, value: Any) -> None:
        time.sleep(SECONDS)
        super().set(key, value)
