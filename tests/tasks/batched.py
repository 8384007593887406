"""Tasks that collect messages in the worker and run many at once, in the way of celery-batches.

celery-batches 0.11 is for Celery before 5.7. As its `Batches`, `Collecting` has its own `Strategy`, keeps
the requests, and gives the pool one run for all of them, with callbacks that acknowledge each.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Task
from celery.worker.request import create_request_cls
from support.diary import note
from work import app

__all__ = ["app"]


@dataclasses.dataclass
class Collected:
    """What the run is given of a message: celery-batches' `SimpleRequest`."""

    id: str
    args: tuple
    delivery_info: dict
    request_dict: dict


class Collecting(Task):
    """Runs when `flush_every` messages have come."""

    abstract = True
    typing = False
    flush_every = 10

    def __init__(self) -> None:
        self.collected: list[Any] = []

    def Strategy(self, task, app, consumer):  # noqa: N802 - Celery's name
        make = create_request_cls(
            task.Request, task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
        )
        options = {"app": app, "hostname": consumer.hostname, "task": task, "decoded": False, "utc": True}

        def receive(message, body, ack, reject, callbacks, **_):
            self.collected.append(
                make(
                    message,
                    on_ack=ack,
                    on_reject=reject,
                    body=message.body,
                    headers=message.headers,
                    connection_errors=consumer.connection_errors,
                    **options,
                )
            )
            if len(self.collected) >= self.flush_every:
                requests, self.collected = self.collected, []
                self.flush(consumer.pool, requests)

        return receive

    def flush(self, pool, requests):
        members = [
            Collected(each.id, each._payload[0], each.delivery_info, each.request_dict) for each in requests
        ]

        def acknowledge(*_, **__):
            for request in requests:
                request.acknowledge()

        when = "callback" if self.acks_late else "accept_callback"
        pool.apply_async(run_collected, (self, (members,), 0, None), **{when: acknowledge})


def run_collected(task, args, loglevel, logfile):
    return task(*args)


@app.task(base=Collecting, flush_every=50)
def collect(requests):
    note("batch", keys=[request.args[0] for request in requests])


@app.task(base=Collecting, flush_every=4, acks_late=True)
def late(requests):
    """Runs until the file exists that its first message names."""
    note("started", keys=[request.args[0] for request in requests])
    while not Path(requests[0].args[1]).exists():
        time.sleep(0.05)
    note("done", keys=[request.args[0] for request in requests])


@app.task(base=Collecting, flush_every=2, acks_late=True)
def killed(requests):
    note("started", keys=[request.args[0] for request in requests])
    if not requests[0].delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
