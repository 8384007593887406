"""Commands that finish what they are at when they are told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(*, second_raises: bool = False) -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; where `second_raises`, the second is a KeyboardInterrupt."""
    stop = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if second_raises and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
