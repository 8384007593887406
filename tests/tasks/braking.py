"""Tasks that need something which fails while a test says so."""

import os
import random
import time
from pathlib import Path

from celery import signals
from kombu.asynchronous import get_event_loop
from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("braking", task_cls=VisibilityTask)

#: The share of calls that fail, as text in that file; without it none do.
FAILING_VARIABLE = "TEST_DEPENDENCY_FAILS"

DELAYS = [1, 2, 4]


class DependencyDown(Exception):
    """What a call of the dependency raises."""


class CallTimedOut(DependencyDown):
    """Fails to travel from the child to the main process."""

    def __init__(self, one, two):
        super().__init__(one, two)
        self.lock = open(os.devnull)  # noqa: SIM115, PTH123


def call(key, error=DependencyDown, seconds=0.02):
    path = Path(os.environ[FAILING_VARIABLE])
    fails = random.random() < (float(path.read_text()) if path.exists() else 0)
    note("called", key=key, fails=fails)
    time.sleep(seconds)
    if fails:
        raise error(key, "down") if error is CallTimedOut else error(key)


def lose_connection():
    raise ConnectionResetError("made up by the test")


@signals.task_received.connect
def on_received(request=None, **_):
    """Have the event loop meet a connection error after it receives that key."""
    if request.args[0] == "trouble":
        get_event_loop().call_later(0.5, lose_connection)


@app.task(bind=True, brake_on=(DependencyDown,), brake="bank", error_visibility_timeout=DELAYS)
def pay(self, key):
    call(key)
    note("done", key=key, retries=self.request.retries)


@app.task(bind=True, brake_on=DependencyDown, brake="bank", error_visibility_timeout=DELAYS)
def refund(self, key):
    call(key, CallTimedOut)
    note("done", key=key, retries=self.request.retries)


@app.task
def other(key):
    note("done", key=key)
