"""Starting threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(target: Callable[..., None], name: str, *args: object) -> threading.Thread | None:
    """Start a daemon thread; `None` if the system has no more threads, or the interpreter ends."""
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # "can't start new thread"
        return None
    return thread
