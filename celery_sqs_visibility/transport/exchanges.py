"""Exchanges, which SQS does not have: direct ones are a table in each process, others are refused.

A message for a fanout or topic exchange would reach only the queues that its publisher has declared: other
processes would get nothing, and no error would say so.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from celery_sqs_visibility.errors import UnroutableError

#: kombu's names for the exchanges of remote control (kombu/pidbox.py: `Mailbox.exchange_fmt`).
CONTROL_SUFFIX: Final = ".pidbox"

#: Celery's default name for the exchange of its events (the setting `event_exchange`).
EVENT_EXCHANGE: Final = "celeryev"


def refuse_type(exchange: str, kind: str) -> None:
    """Raise `UnroutableError` if it is not direct, nor Celery's own, to which Celery publishes unasked."""
    if kind != "direct" and not is_celerys_own(exchange):
        raise UnroutableError(
            f"exchange {exchange!r} is of type {kind!r}, and on SQS there are only direct exchanges: other "
            f"processes would not get its messages. Use a direct exchange"
            f"{' in place of Broadcast' if kind == 'fanout' else ''}, or publish to each queue by its name"
        )


def refuse_unbound(exchange: str, routing_key: str) -> None:
    """Raise `UnroutableError` instead of dropping a message, but on Celery's own: nobody listens there."""
    if not is_celerys_own(exchange):
        raise UnroutableError(
            f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r} here. On SQS there "
            f"are no exchanges of type fanout (Broadcast) or topic, and a direct one is known only where its "
            f"queue is declared: publish to the queue by its name (queue=), or declare it first (declare=)"
        )


def is_celerys_own(exchange: str) -> bool:
    """Whether the exchange is for remote control, or for the events of an app of this process."""
    if exchange.endswith(CONTROL_SUFFIX) or exchange == EVENT_EXCHANGE:
        return True
    state: Any = sys.modules.get("celery._state")
    apps = list(state._get_active_apps()) if state is not None else []  # noqa: SLF001 - see docs/architecture.md
    return any(app.configured and str(app.conf.event_exchange) == exchange for app in apps)
