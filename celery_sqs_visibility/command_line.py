"""Wrong settings as one line of the `celery` command, with exit status 1.

Celery makes connections and binds tasks outside of any `try` (celery/bin/worker.py, beat.py and more), so the
user would see sixty lines of traceback. Click, which runs the commands, prints its own exceptions as one
line. Elsewhere an error stays as it is: in a web application, in a user's own click program, and when it is
pickled in a pool's process, which inherits the context.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)


def shown_in_one_line(error: E, exit_status: int = 1) -> E:
    """Return `error` or, in a `celery` command, one of its class that click prints as a line. Any thread."""
    click = _click_of_command()
    if click is None:
        return error
    cls = type(error)
    body = {
        "__module__": cls.__module__,
        "__reduce__": lambda self: (cls, (str(self),)),
        "exit_code": exit_status,
    }
    one_line: E = type(cls.__name__, (click.ClickException, cls), body)(str(error))
    return one_line


def ends_command(error: Exception) -> Exception:
    """Return `error` or, in a `celery` command, one that ends it, of a class that it does not catch."""
    click = _click_of_command()
    return error if click is None else click.ClickException(str(error))


def _click_of_command() -> Any:
    """The module click in a `celery` command; `None` elsewhere."""
    # Not imported: in a command it is loaded already, and a producer does not need it.
    click: Any = sys.modules.get("click")
    celerys: Any = sys.modules.get("celery.bin.base")
    context = click and click.get_current_context(silent=True)
    if celerys is None or context is None or context.find_object(celerys.CLIContext) is None:
        return None
    return click
