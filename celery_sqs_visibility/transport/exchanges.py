"""Exchanges, which SQS does not have: direct ones are a table in each process, others are refused.

A message for a fanout or topic exchange would reach the queues that its publisher has declared, and no other
process's: nobody would get it, and nobody would be told.
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
    """Refuse exchanges that are not direct. Celery's own are let through: Celery publishes to them unasked.

    Raises:
        UnroutableError: a sentence that says what to do instead.
    """
    if kind != "direct" and not is_celerys_own(exchange):
        raise UnroutableError(
            f"exchange {exchange!r} is of type {kind!r}, and on SQS there are only direct exchanges: other "
            f"processes would not get its messages. Use a direct exchange"
            f"{' in place of Broadcast' if kind == 'fanout' else ''}, or publish to each queue by its name"
        )


def refuse_unbound(exchange: str, routing_key: str) -> None:
    """Refuse to drop a message in silence. Celery's own exchanges have nobody who listens, and that is known.

    Raises:
        UnroutableError: a sentence that says what to do instead.
    """
    if not is_celerys_own(exchange):
        raise UnroutableError(
            f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r} here. On SQS there "
            f"are no exchanges of type fanout (Broadcast) or topic, and a direct one is known only where its "
            f"queue is declared: publish to the queue by its name (queue=), or declare it first (declare=)"
        )


def is_celerys_own(exchange: str) -> bool:
    """Whether it is for remote control or events: of this process's apps, whatever they call them."""
    return exchange.endswith(CONTROL_SUFFIX) or exchange == EVENT_EXCHANGE or exchange in _event_exchanges()


def _event_exchanges() -> set[str]:
    """What the apps of this process call their event exchange; those whose settings are read."""
    state: Any = sys.modules.get("celery._state")
    apps = list(state._get_active_apps()) if state is not None else []  # noqa: SLF001 - see docs/architecture.md
    return {str(app.conf.event_exchange) for app in apps if app.configured}
