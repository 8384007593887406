"""Changes to a Celery worker: bootsteps, requests, pools, start and end.

kombu's alias leads here (`celery_sqs_visibility.Transport`), so importing the transport adds the bootsteps.
Producers import this module too, so it imports nothing that only workers need.

Celery imports a worker's transport before it sends `worker_init` (celery/worker/worker.py:
`WorkController.setup_instance`), but not under gevent and eventlet. Every consumer imports it before it reads
its app's steps (celery/worker/consumer/consumer.py: `Consumer.__init__`). So apps that exist when this module
is imported get the bootsteps at once, and later workers when they are made.
"""

from __future__ import annotations

from typing import Any, Final

from celery import Celery, signals

from celery_sqs_visibility.contacts.app import active_apps
from celery_sqs_visibility.option_secrets import mask_settings
from celery_sqs_visibility.transport.transport import Transport

__all__ = ["Transport"]

#: Names of bootsteps, which Celery imports when it builds a consumer's blueprint. They only take effect on
#: our transport (`bootsteps.SQSStep.include_if`).
BOOTSTEPS: Final = (
    "celery_sqs_visibility.worker.bootsteps:Deliveries",
    "celery_sqs_visibility.worker.bootsteps:Endings",
    "celery_sqs_visibility.operate.worker_step:Operations",
)


def add_bootsteps(app: Celery) -> None:
    """Add the bootsteps to an app's workers. Any thread."""
    app.steps["consumer"].update(BOOTSTEPS)


@signals.worker_init.connect(weak=False)
def on_worker_init(sender: Any, **_: Any) -> None:
    """Add the bootsteps to a worker whose blueprints are not built yet. The thread that makes it."""
    add_bootsteps(sender.app)


@signals.beat_init.connect(weak=False)
def on_beat_init(sender: Any, **_: Any) -> None:
    """Check beat's settings. Its banner has imported the transport (celery/apps/beat.py: `startup_info`)."""
    from celery_sqs_visibility.worker.startup import check_beat  # noqa: PLC0415 - a producer needs none

    check_beat(sender.app)


mask_settings()

# After the signal is connected, so that workers of apps made meanwhile get them, too.
for _app in active_apps():
    add_bootsteps(_app)
