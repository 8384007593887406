"""How every background thread of the package is started."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(target: Callable[..., None], name: str, *args: object) -> threading.Thread | None:
    """Start a daemon thread; `None` if the system refuses a new one. Any thread; never raises."""
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads just now, or the interpreter is ending
        return None
    return thread
