"""Tasks under other packages: batches, a tracer, coroutines."""

import asyncio
import os

from celery_batches import Batches
from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("packaged", task_cls=VisibilityTask)

if os.environ.get("PACKAGED_TRACER"):
    from ddtrace import patch
    from ddtrace.trace import TraceFilter, tracer

    class Noted(TraceFilter):
        """Notes each span, and sends none."""

        def process_trace(self, trace):
            for span in trace:
                note("span", name=span.name, error=span.error, tags=dict(span.get_tags()))

    patch(celery=True, botocore=True)
    tracer.configure(trace_processors=[Noted()])


class Trouble(Exception):
    """What a task fails with."""


@app.task(base=Batches, flush_every=10, flush_interval=30)
def collect(requests):
    note("batch", keys=[request.args[0] for request in requests])


@app.task(bind=True, error_visibility_timeout=1, max_retries=2)
def once_failing(self, key):
    note("started", key=key)
    if self.request.retries < 1:
        raise Trouble(key)
    note("done", key=key)


@app.task(base=None)
def plain(key):
    note("done", key=key)


@app.task(bind=True, error_visibility_timeout=1, max_retries=2)
async def awaiting(self, key):
    note("started", key=key)
    await asyncio.sleep(0.1)
    note("done", key=key)
