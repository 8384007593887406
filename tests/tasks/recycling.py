"""The tasks of `work`, in a worker whose processes take a second to begin and to end.

The event loop has a connection error after it receives "ended" or "replaced" first: when a process of the
pool has ended, or when its successor was forked, which is not ready yet.
"""

from __future__ import annotations

import time

import psutil
from celery import signals
from kombu.asynchronous import get_event_loop
from work import app

__all__ = ["app"]

SECOND = 1.0

processes = set()


@signals.worker_process_init.connect
@signals.worker_process_shutdown.connect
def take_a_second(**_):
    time.sleep(SECOND)


@signals.task_received.connect
def on_received(request=None, **_):
    lose = {"ended": lose_once_ended, "replaced": lose_once_replaced}.get(request.args[0])
    if lose and not processes:
        processes.update(psutil.Process().children())
        get_event_loop().call_later(SECOND / 5, lose)


def lose_once_ended():
    """Before the loop hears of the end."""
    while not any(process.status() == psutil.STATUS_ZOMBIE for process in processes):
        time.sleep(SECOND / 100)
    raise ConnectionResetError("made up by the test")


def lose_once_replaced():
    if not processes.issuperset(psutil.Process().children()):
        raise ConnectionResetError("made up by the test")
    get_event_loop().call_later(SECOND / 20, lose_once_replaced)
