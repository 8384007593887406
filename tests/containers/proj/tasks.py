"""Tasks of all kinds. Each notes `started`, and then `failing` or `done`, with its key."""

import functools
import subprocess
import time
from pathlib import Path

from celery import Task, chain, chord

from proj import app
from proj.notes import note


class Trouble(Exception):
    """What the tasks fail with."""


def noting(body=None, **options):
    """A bound task that notes its runs."""
    if body is None:
        return functools.partial(noting, **options)

    @app.task(bind=True, **options)
    @functools.wraps(body)
    def run(self, key, *args, **kwargs):
        note("started", key=key, message=(getattr(self.request, "sqs", None) or {}).get("message_id"))
        try:
            result = body(self, key, *args, **kwargs)
        except Exception as error:
            note("failing", key=key, error=repr(error))
            raise
        note("done", key=key)
        return result

    return run


@noting
def quick(self, key, padding=""):
    return key


@noting(error_visibility_timeout=1, max_retries=2)
def read(self, key, rows):
    """Is killed before it runs, where memory is short."""


@noting
def slow(self, key, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)


@noting(error_visibility_timeout=1)
def failing(self, key):
    if self.request.retries < 1:
        raise Trouble(key)


@noting(error_visibility_timeout=1, max_retries=1)
def hopeless(self, key):
    raise Trouble(key)


@noting
def retried(self, key):
    if self.request.retries < 1:
        raise self.retry(countdown=1)


@noting(base=Task, acks_late=False)
def stock_early(self, key):
    time.sleep(0.1)


@noting(base=Task, acks_late=True)
def stock_late(self, key):
    time.sleep(0.1)


@noting(exclusive=lambda args, kwargs: args[1], error_visibility_timeout=1)
def exclusive(self, key, name):
    time.sleep(0.1)


@noting
def step(self, key):
    """Of a chain or a chord."""


@noting
def canvas(self, key, keys):
    steps = [step.si(each).set(task_id=each, queue="orders") for each in keys]
    chain(*steps[:2]).delay()
    chord(steps[2:-1], steps[-1]).delay()


@noting(error_visibility_timeout=[2, 5, 10], max_retries=8)
def hungry(self, key, megabytes):
    """Takes so much memory at its first attempt."""
    if self.request.retries < 1:
        note("eating", key=key)
        block = bytearray(megabytes << 20)
        time.sleep(5)
        del block


@noting(error_visibility_timeout=2, max_retries=30)
def writing(self, key, kilobytes):
    """Fails while the disk is full."""
    path = Path(f"/tmp/{key}")
    try:
        path.write_bytes(b"x" * (kilobytes << 10))
    finally:
        path.unlink(missing_ok=True)


@noting
def leaving_orphans(self, key, count):
    """Leaves processes behind whose parents are gone: whoever is PID 1 has to reap them."""
    for _ in range(count):
        subprocess.run(["/bin/sh", "-c", "sleep 0.2 & exit 0"], check=True)
