"""Contacts with Celery's apps and tasks, in any process. Functions import Celery when they are called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def active_apps() -> list[Any]:
    """Return this process's apps; none if Celery is not imported (celery/_state.py: `_get_active_apps`).

    Without them a transport that is imported late adds no bootsteps to an app's workers, and does not know
    the exchanges and queues of its settings.
    """
    state: Any = sys.modules.get("celery._state")
    return [] if state is None else list(state._get_active_apps())


def replace_settings_filter(without_secrets: Callable[[Mapping[Any, Any]], dict[Any, Any]]) -> None:
    """Replace the function that masks settings (celery/app/utils.py: `filter_hidden_settings`).

    Celery's masks only URLs of the first level. Without ours `celery report` and `inspect conf` show secrets
    in the transport options.
    """
    from celery.app import utils  # noqa: PLC0415

    utils.filter_hidden_settings = without_secrets  # type: ignore[assignment]


def add_to_contexts(names: Iterable[str]) -> None:
    """Add attributes to Celery's class of task requests (celery/app/task.py: `Context`).

    Celery copies attributes that the class does not have into the headers of retries and chains
    (`_get_custom_headers`). Without this the next message would carry the delivery of the one before.
    """
    from celery.app.task import Context  # noqa: PLC0415

    for name in names:
        setattr(Context, name, None)


def set_within_autoretry(task: Any, run: Callable[..., Any]) -> None:
    """Replace the method that autoretry calls, if the task has one (celery/app/autoretry.py: `_orig_run`).

    Celery looks it up at each run. Without this a task class registered with `autoretry_for` would run
    unwrapped, and its failures would not be retried.
    """
    if "_orig_run" in vars(task):
        task._orig_run = run


def forget_given_limit(task: Any) -> None:
    """Forget the limit given to `self.retry()` (celery/app/task.py: `override_max_retries`).

    Celery keeps it on the task for autoretry. Without this it would also apply to the next message.
    """
    vars(task).pop("override_max_retries", None)


def chord_claim_of(backend: Any) -> Callable[[int, Any], float] | None:
    """Return a function of join timeout and body: how long a claim to publish a chord's body lasts.

    `None` if the backend makes no such claims. Celery 5.7 makes them in Redis (celery/backends/redis.py:
    `_chord_publish_claim_expires`). Without it a lost member of a chord comes back while its claim still
    stands, and the body is never published.
    """
    expires: Callable[[int, Any], float] | None = getattr(backend, "_chord_publish_claim_expires", None)
    return expires


def counts_ends(backend: Any) -> bool:
    """Return whether a backend counts each run of a chord's member, instead of each member once.

    Key-value stores with counters do (celery/backends/base.py: `implements_incr`). So does Redis before
    Celery 5.7 if the results differ (`_chord_zset`). Without this a redelivered member would have the body
    called too early, or never.
    """
    counts = getattr(backend, "implements_incr", False) or hasattr(type(backend), "_chord_zset")
    return bool(counts) and chord_claim_of(backend) is None
