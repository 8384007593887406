"""The tasks of `work`, in a worker whose event loop has a connection error when it receives "trouble" first.

SQS has no connection to lose, but an OSError in any callback of Celery's event loop, such as a user's reader
or timer, has the worker connect anew.
"""

from __future__ import annotations

from celery import signals
from kombu.asynchronous import get_event_loop
from support.diary import note
from work import app

__all__ = ["app"]

consumers = []
troubled = []


@signals.worker_ready.connect
def on_ready(sender, **_):
    consumers.append(sender)


def lose_connection():
    raise ConnectionResetError("made up by the test")


@signals.task_received.connect
def on_received(request=None, **_):
    note("received", key=request.args[0], prefetch_count=consumers[0].qos.value)
    if request.args[0] == "trouble" and not troubled:
        troubled.append(True)
        get_event_loop().call_later(0.5, lose_connection)
