"""Has the `celery` command say in one line why it cannot run, with exit status 1.

Celery makes connections and binds tasks where it catches nothing (celery/bin/worker.py, beat.py and more), so
that sixty lines of traceback would stand before the sentence. But click, which runs the commands, prints its
own kind of exception as one line. Elsewhere, as in a web application that publishes, an error stays as it is.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)


def shown_in_one_line(error: E) -> E:
    """Return `error`, or in a command one of the same class that click prints as a line. Any thread."""
    click: Any = sys.modules.get("click")  # not imported: a command has it, and a producer needs none
    if click is None or click.get_current_context(silent=True) is None:
        return error
    cls = type(error)
    one_line: E = type(cls.__name__, (click.ClickException, cls), {"__module__": cls.__module__})(str(error))
    return one_line
