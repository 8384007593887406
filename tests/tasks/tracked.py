"""Tasks under an error tracker's eyes: Sentry's SDK, whose events go to the diary and not to Sentry."""

import logging
import os

import sentry_sdk
from celery import signals
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport
from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("tracked", task_cls=VisibilityTask)


class DiaryTransport(Transport):
    """Notes each error that would be sent."""

    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            note(
                "sentry",
                id=event["tags"].get("celery_task_id") if "tags" in event else None,
                errors=[value["type"] for value in event.get("exception", {}).get("values", [])],
                logger=event.get("logger"),
                level=event["level"],
            )


# As late as it can be: the package has been imported, and with it the part that traces runs.
sentry_sdk.init(
    "http://key@127.0.0.1:9/1",
    transport=DiaryTransport,
    integrations=[LoggingIntegration(event_level=os.environ.get("SENTRY_LEVEL", logging.ERROR))],
)


class Trouble(Exception):
    """What the tasks fail with."""


@app.task(bind=True, error_visibility_timeout=1, max_retries=2)
def failing(self, times):
    if self.request.retries < times:
        raise Trouble(times)
    note("done", id=self.request.id)


@signals.task_retry.connect(weak=False)
def on_retry(request, einfo, **_):
    note("task_retry", id=request.id, told="in failing\n" in einfo.traceback)


@signals.task_failure.connect(weak=False)
def on_failure(task_id, einfo, **_):
    note("task_failure", id=task_id, told="in failing\n" in einfo.traceback)
