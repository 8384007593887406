"""Questions to workers, by remote control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from celery import Celery

from celery_sqs_visibility.transport.control_exchanges import REMEDY

F = TypeVar("F", bound=Callable[..., Any])

#: Celery's own default (celery/bin/control.py).
ANSWER_SECONDS: Final = 1.0

CONTROL_IS_OFF: Final = f"remote control is off here: {REMEDY}"

#: The decorator of a command that takes `timeout`.
timeout_option: Callable[[F], F] = click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=ANSWER_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the workers' answers.",
)


def is_controlled(app: Celery) -> bool:
    """Whether workers with this app's settings can be asked; as Celery's workers find it out. No request."""
    with app.connection_for_read() as connection:
        enabled = bool(app.conf.worker_enable_remote_control)
        return enabled and bool(connection.supports_exchange_type("fanout"))


def ask(
    app: Celery, command: str, timeout: float, nodes: Sequence[str] = (), **arguments: Any
) -> dict[str, Any]:
    """The answers of all workers, or of those nodes, by node, in order; of those that answer in time."""
    replies: list[dict[str, Any]] = (
        app.control.broadcast(
            command, arguments=arguments, destination=list(nodes) or None, reply=True, timeout=timeout
        )
        or []
    )
    return dict(sorted((node, answer) for reply in replies for node, answer in reply.items()))
