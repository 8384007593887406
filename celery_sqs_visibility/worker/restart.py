"""SIGHUP, at which Celery starts a worker's command line anew: `sys.argv`, as it takes it.

Of `python -m celery` that begins with the path of Celery's `__main__.py`, which Python cannot run by its path
(celery/apps/worker.py: `_reload_current_worker`).
"""

from __future__ import annotations

import atexit
import signal
import sys
from typing import Any, Final

#: Celery's name of its handler (celery/apps/worker.py: `install_worker_restart_handler`).
RESTART_HANDLER: Final = "restart_worker_sig_handler"


def restart_by_module() -> None:
    """Have Celery start anew what was started by `python -m`. Main thread; again, it does nothing."""
    number = getattr(signal, "SIGHUP", None)
    handler: Any = None if number is None else signal.getsignal(number)
    by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    if number is None or not by_module or getattr(handler, "__name__", None) != RESTART_HANDLER:
        return

    def restart(*args: Any) -> None:
        handler(*args)
        atexit.register(_restore_command_line)  # called before the hook that Celery has registered

    signal.signal(number, restart)


def _restore_command_line() -> None:
    sys.argv[:] = sys.orig_argv[1:]
