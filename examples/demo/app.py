"""What the demo's worker loads instead of `proj`: the same app, and a listener that writes down what happens.

`subscribe` is all there is to it; metrics or a tracer would do the same. Events happen in the worker's main
process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict
from typing import Any

from celery.signals import worker_ready
from proj.celery import app

from celery_sqs_visibility import SQSRequest, subscribe

# Short polls with long sleeps between them, so that one sees: a sleep never delays a retry. The default, one
# long poll after the other, costs less; but moto's long poll looks for returning messages once a second only.
app.conf.broker_transport_options |= {
    "wait_time_seconds": 0,
    "polling_interval": 0.5,
    "polling_interval_max": 4,
}

# O_APPEND and a single write: lines of several threads do not mix.
_events = os.open(os.environ["DEMO_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def tell(event: str, **facts: Any) -> None:
    line = json.dumps({"at": time.time(), "event": event, **facts})
    os.write(_events, f"{line}\n".encode())


def on_event(event: Any) -> None:
    tell(type(event).__name__, **asdict(event))


subscribe(on_event)
subscribe(on_event, SQSRequest)


@worker_ready.connect
def _on_ready(**_: Any) -> None:
    tell("Ready")


@app.task(bind=True, error_visibility_timeout=1)
def crash_once(self: Any) -> str:
    """Kill the pool's child that runs it, as the kernel does when memory is short; not so the second time."""
    if self.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"
