"""The tasks of `work`, in a worker whose event loop has a connection error after it receives certain keys.

SQS has no connection to lose, but an OSError in any callback of Celery's event loop, such as a user's reader
or timer, has the worker connect anew. "trouble" brings it soon, "ended" when a process of the pool has ended,
and "replaced" when its successor was forked, which is not ready yet. With SLOW_PROCESSES processes take a
second to begin and to end.
"""

import os
import time

import psutil
from celery import signals
from kombu.asynchronous import get_event_loop
from work import app

__all__ = ["app"]

SECOND = 1.0

processes = set()


def lose():
    raise ConnectionResetError("made up by the test")


def lose_once_ended():
    """Before the loop hears of the end."""
    while not any(process.status() == psutil.STATUS_ZOMBIE for process in processes):
        time.sleep(SECOND / 100)
    lose()


def lose_once_replaced():
    if not processes.issuperset(psutil.Process().children()):
        lose()
    get_event_loop().call_later(SECOND / 20, lose_once_replaced)


LOSSES = {"trouble": lose, "ended": lose_once_ended, "replaced": lose_once_replaced}


@signals.task_received.connect
def on_received(request=None, **_):
    if (key := request.args[0]) in LOSSES and not processes:
        processes.update(psutil.Process().children())
        get_event_loop().call_later(SECOND / 2 if key == "trouble" else SECOND / 5, LOSSES[key])


if "SLOW_PROCESSES" in os.environ:

    @signals.worker_process_init.connect
    @signals.worker_process_shutdown.connect
    def take_a_second(**_):
        time.sleep(SECOND)
