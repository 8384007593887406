"""What a Celery worker on this transport gets without being asked: the transport, and one bootstep.

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

#: By name: Celery imports it when it builds the consumer's blueprint.
BOOTSTEP: Final = "celery_sqs_visibility.deliveries:Deliveries"


@signals.worker_init.connect(weak=False)
def add_bootstep(sender: Any, **_: Any) -> None:
    """Add the bootstep to a worker whose broker we are. Main thread, before the blueprints are built.

    The pool's children inherit the board.
    """
    if isinstance(sender.app.connection_for_read().transport, Transport):
        open_board()
        send_signals()
        sender.app.steps["consumer"].add(BOOTSTEP)
