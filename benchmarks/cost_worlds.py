"""What stands around what is counted: clock, SQS, pools that answer at once.

Nothing here is counted but what it calls.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from types import SimpleNamespace

import paths  # noqa: F401
from billiard.pool import TASK, ApplyResult
from billiard.reduction import ForkingPickler
from celery.concurrency import thread
from celery.concurrency.base import BasePool

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery import threads
from celery_sqs_visibility.policy.clock import SystemClock
from celery_sqs_visibility.transport import broker_clients

RUN_SECONDS = 0.0005
LATENCY_SECONDS = 0.01

#: The monotonic time, in seconds. Code that is counted reads it as it reads the machine's: by a call into C.
hands = [1000.0]


def advance(seconds):
    hands[0] += seconds


class Clock:
    """The fake SQS's, at whose long polls nobody waits."""

    monotonic = staticmethod(partial(hands.__getitem__, 0))
    wall = staticmethod(time.time)


class SQS(FakeSQS):
    """One that `counter` does not count, and whose long polls take their time.

    `meanwhile` is told how many seconds, and passes them.
    """

    def __init__(self, counter):
        super().__init__(Clock())
        self._counter = counter

    @staticmethod
    def meanwhile(seconds):
        pass

    def receive(self, queue_url, max_messages, wait, options):
        self.meanwhile(wait)
        return self._uncounted(super().receive, queue_url, max_messages, wait, options)

    def delete(self, *arguments):
        return self._uncounted(super().delete, *arguments)

    def change_visibility(self, *arguments, **options):
        return self._uncounted(super().change_visibility, *arguments, **options)

    def send(self, *arguments):
        return self._uncounted(super().send, *arguments)

    def send_batch(self, *arguments, **options):
        return self._uncounted(super().send_batch, *arguments, **options)

    def list_queues(self, *arguments):
        return self._uncounted(super().list_queues, *arguments)

    def queue_tags(self, *arguments):
        return self._uncounted(super().queue_tags, *arguments)

    def tag_queue(self, *arguments):
        return self._uncounted(super().tag_queue, *arguments)

    def delete_queue(self, *arguments):
        return self._uncounted(super().delete_queue, *arguments)

    def _uncounted(self, call, *arguments, **options):
        self._counter.pause()
        try:
            return call(*arguments, **options)
        finally:
            self._counter.resume()


class Unstarted(threading.Thread):
    """A thread of the package, whose part the driver plays."""

    def start(self):
        """It does not begin."""

    def is_alive(self):
        return True


def single_threaded_sqs(counter):
    """An SQS in memory for all that connects from here on; threads of the package do not begin."""
    SystemClock.monotonic = Clock.monotonic
    threads.threading = SimpleNamespace(**{**vars(threading), "Thread": Unstarted})
    sqs = SQS(counter)
    broker_clients.shared_sqs = lambda _settings: sqs
    return sqs


# Pools


class Processes(BasePool):
    """Stands for prefork's: what its main process does for a run, but for the pipes."""

    uses_semaphore = True
    answers = True
    flush = None

    def on_start(self):
        self._cache = {}

    def on_apply(
        self,
        target,
        args,
        kwargs,
        callback=None,
        accept_callback=None,
        timeout_callback=None,
        error_callback=None,
        callbacks_propagate=(),
        correlation_id=None,
        **_,
    ):
        run = ApplyResult(
            self._cache,
            callback,
            accept_callback,
            timeout_callback,
            error_callback,
            callbacks_propagate=callbacks_propagate,
            correlation_id=correlation_id,
        )
        ForkingPickler.dumps((TASK, (run._job, None, target, args, kwargs)))
        run._ack(None, time.time(), os.getpid(), None)
        if self.answers:
            advance(RUN_SECONDS)
            self.options["semaphore"].release()
            run._set(None, (True, (0, None, RUN_SECONDS)))
        return run


class Threads(thread.TaskPool):
    """Celery's own, but that a run is over when it has begun: tracing the task is this process's business."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.executor = AtOnce()


class AtOnce:
    """An executor that is a future of its own, of which nobody asks a result."""

    _threads = ()
    result = None

    def submit(self, target, *args):
        advance(RUN_SECONDS)
        target(*args)
        return self

    def shutdown(self, **_):
        pass
