"""What a Celery worker on this transport gets without being asked: the transport, and two bootsteps.

kombu's alias leads here (`celery_sqs_visibility.Transport`), so this module is imported with the transport.
Producers import it, too, and nothing of what only workers need.

Celery looks at a worker's transport before it sends `worker_init` (celery/worker/worker.py:
`WorkController.setup_instance`), but not under gevent and eventlet. Every consumer does, in its constructor,
before it reads its app's steps (celery/worker/consumer/consumer.py: `Consumer.__init__`). So the apps that
exist when this module is imported get the bootsteps at once, and later workers when they are made.
"""

from __future__ import annotations

from typing import Any, Final

from celery import Celery, signals
from celery._state import _get_active_apps

from celery_sqs_visibility.transport.transport import Transport

__all__ = ["Transport"]

#: By name: Celery imports them when it builds the consumer's blueprint. They are for our transport alone, and
#: say so (`bootsteps.Step.include_if`).
BOOTSTEPS: Final = (
    "celery_sqs_visibility.worker.bootsteps:Deliveries",
    "celery_sqs_visibility.worker.endings:Endings",
)


def add_bootsteps(app: Celery) -> None:
    """Add the bootsteps to an app's workers. Any thread."""
    app.steps["consumer"].update(BOOTSTEPS)


@signals.worker_init.connect(weak=False)
def on_worker_init(sender: Any, **_: Any) -> None:
    """A worker is being made, whose blueprints are not built yet. The thread that makes it."""
    add_bootsteps(sender.app)


# After the signal is connected: an app that is made meanwhile has its workers later.
for _app in list(_get_active_apps()):
    add_bootsteps(_app)
