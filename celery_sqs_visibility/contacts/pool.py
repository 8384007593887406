"""Contacts with Celery's pools, and with billiard's processes below them."""

from __future__ import annotations

from typing import Any, Final, cast

from billiard import common

#: What a pool's process does at SIGTERM (billiard/common.py: `_shutdown_cleanup`), which the end of a chord's
#: member puts off. Without it a SIGTERM might come between the decision to publish the chord's body and that.
POOLS_HANDLER: Final = cast("Any", common)._shutdown_cleanup


def processes_of(pool: Any) -> list[Any] | None:
    """The processes of a prefork pool; `None` of another, and of one that has not started.

    Celery's pool has billiard's in its attribute `_pool`, and that has them in its own (billiard/pool.py:
    `Pool._pool`). Without them a probe does not notice that a pool has lost its processes.
    """
    children = getattr(getattr(pool, "_pool", None), "_pool", None)
    return list(children) if isinstance(children, list) else None
