"""Exchanges, which SQS does not have: direct ones are a table in each process, fanout ones SNS topics.

Others are refused, and fanout ones without SNS: a message would reach only the queues that its publisher has
declared. Other processes would get nothing, and no error would say so.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from celery_sqs_visibility.errors import UnroutableError

#: kombu's names for the exchanges of remote control (kombu/pidbox.py: `Mailbox.exchange_fmt`).
CONTROL_SUFFIX: Final = ".pidbox"
REPLY_PREFIX: Final = "reply."

#: Celery's default name for the exchange of its events (the setting `event_exchange`).
EVENT_EXCHANGE: Final = "celeryev"


def refuse_type(exchange: str, kind: str, *, supports_fanout: bool) -> None:
    """Raise `UnroutableError` if other processes would not get what is published to the exchange.

    Not of Celery's own exchanges, to which Celery publishes unasked. `supports_fanout` is the option.
    """
    if kind in {"direct", "fanout" if supports_fanout else "direct"} or is_celerys_own(exchange):
        return
    fanout = "Set the transport option supports_fanout, which needs SNS"
    remedy = fanout if kind == "fanout" else "Use a direct exchange"
    raise UnroutableError(
        f"exchange {exchange!r} is of type {kind!r}, and on SQS there are only direct exchanges: other "
        f"processes would not get its messages. {remedy}, or publish to each queue by its name"
    )


def refuse_unbound(exchange: str, routing_key: str) -> None:
    """Raise `UnroutableError` instead of dropping a message, but on Celery's own: nobody listens there."""
    if not is_celerys_own(exchange):
        raise UnroutableError(
            f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r} here. On SQS there "
            f"are exchanges of type fanout (Broadcast) with the option supports_fanout only, none of type "
            f"topic, and any other is known only where it is declared: publish to the queue by its name "
            f"(queue=), or declare it first (declare=)"
        )


def is_celerys_own(exchange: str) -> bool:
    """Whether the exchange is for remote control, or for the events of an app of this process."""
    if exchange.endswith(CONTROL_SUFFIX) or exchange == EVENT_EXCHANGE:
        return True
    return any(str(app.conf.event_exchange) == exchange for app in _configured_apps())


def is_for_control(exchange: str) -> bool:
    """Whether the exchange is for commands to workers, or for their replies."""
    return exchange.endswith(CONTROL_SUFFIX)


def is_reply(exchange: str) -> bool:
    """Whether the exchange is for the replies (kombu/pidbox.py: `Mailbox.reply_exchange_fmt`)."""
    return exchange.startswith(REPLY_PREFIX) and is_for_control(exchange)


def is_for_events(exchange: str) -> bool:
    """Whether the exchange is for the events of an app of this process."""
    return not is_for_control(exchange) and is_celerys_own(exchange)


def is_an_apps_fanout(exchange: str) -> bool:
    """Whether it is the fanout exchange of a queue in the settings of an app of this process."""
    queues = [queue for app in _configured_apps() for queue in app.amqp.queues.values()]
    bound = [each.exchange for queue in queues for each in (queue, *queue.bindings)]
    return any(each.name == exchange and each.type == "fanout" for each in bound if each is not None)


def _configured_apps() -> list[Any]:
    state: Any = sys.modules.get("celery._state")
    apps = list(state._get_active_apps()) if state is not None else []  # noqa: SLF001 - see docs/architecture.md
    return [app for app in apps if app.configured]
