"""What a Celery worker on this transport gets without being asked: the transport, and two bootsteps.

kombu's alias leads here (`celery_sqs_visibility.Transport`), so this module is imported before the worker's
blueprints are built (celery/worker/worker.py: `WorkController.setup_instance`). Producers import it, too, and
nothing of what only workers need.
"""

from __future__ import annotations

from typing import Any, Final

from celery import signals

from celery_sqs_visibility.delivery.leases import open_board
from celery_sqs_visibility.signals import send_signals
from celery_sqs_visibility.transport import Transport

__all__ = ["Transport"]

#: By name: Celery imports them when it builds the consumer's blueprint.
BOOTSTEPS: Final = (
    "celery_sqs_visibility.deliveries:Deliveries",
    "celery_sqs_visibility.endings:Endings",
)


@signals.worker_init.connect(weak=False)
def add_bootsteps(sender: Any, **_: Any) -> None:
    """Add the bootsteps to a worker whose broker we are. Main thread, before the blueprints are built.

    The pool's children inherit the board.
    """
    if isinstance(sender.app.connection_for_read().transport, Transport):
        open_board()
        send_signals()
        sender.app.steps["consumer"].update(BOOTSTEPS)
