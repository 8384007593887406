"""Contacts with Celery's apps and tasks, in whatever process. Imports Celery only where it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def active_apps() -> list[Any]:
    """The apps of this process; none where Celery is not imported (celery/_state.py: `_get_active_apps`).

    Without them a transport that is imported late gives an app's workers no bootsteps, and does not know
    which exchanges and queues are in settings.
    """
    state: Any = sys.modules.get("celery._state")
    return [] if state is None else list(state._get_active_apps())


def show_settings_by(without_secrets: Callable[[Mapping[Any, Any]], dict[Any, Any]]) -> None:
    """Replace the function that masks settings (celery/app/utils.py: `filter_hidden_settings`).

    Celery's masks no URL below the first level: without ours `celery report` and `inspect conf` show secrets
    of the transport options.
    """
    from celery.app import utils  # noqa: PLC0415

    utils.filter_hidden_settings = without_secrets  # type: ignore[assignment]


def know_in_contexts(names: Iterable[str]) -> None:
    """Give Celery's own requests of tasks these attributes too (celery/app/task.py: `Context`).

    Celery sends along what a request does not know, as headers of retries and chains (`_get_custom_headers`).
    Without this the next message would have the delivery of the one before.
    """
    from celery.app.task import Context  # noqa: PLC0415

    for name in names:
        setattr(Context, name, None)


def set_within_autoretry(task: Any, run: Callable[..., Any]) -> None:
    """Replace the method that autoretry calls, if there is one (celery/app/autoretry.py: `_orig_run`).

    Celery looks it up at each run. Without this a task class that is registered with `autoretry_for` would
    run unwrapped: its failures would not come back.
    """
    if "_orig_run" in vars(task):
        task._orig_run = run


def forget_given_limit(task: Any) -> None:
    """Forget the limit that was given to `self.retry()` (celery/app/task.py: `override_max_retries`).

    Celery keeps it on the task for its autoretry: without this the next message would be given it, too.
    """
    vars(task).pop("override_max_retries", None)


def chord_claim_of(backend: Any) -> Callable[[int, Any], float] | None:
    """How long a backend's claim to publish a chord's body lasts, by join timeout and body.

    5.7 has it for Redis (celery/backends/redis.py: `_chord_publish_claim_expires`). Without it a lost member
    of a chord comes back while the claim still stands, and the body is never published.
    """
    expires: Callable[[int, Any], float] | None = getattr(backend, "_chord_publish_claim_expires", None)
    return expires


def counts_ends(backend: Any) -> bool:
    """Whether a backend counts a chord's member at each end of a run of it, and not once.

    Key-value stores with counters do (celery/backends/base.py: `implements_incr`); so does Redis before 5.7
    (`_chord_zset`), if the results differ. Without this a member that is delivered again would have the body
    called too early, or never.
    """
    counts = getattr(backend, "implements_incr", False) or hasattr(type(backend), "_chord_zset")
    return bool(counts) and chord_claim_of(backend) is None
