"""Celery's cold shutdown, by SIGQUIT or a SIGTERM remapped to it, begun where the main thread can bear it.

Celery does all of it in the signal's handler (celery/apps/worker.py: `on_cold_shutdown`): it waits for
`worker_soft_shutdown_timeout`, cancels what runs, and waits for the pool's processes. Where the worker has an
event loop, its thread may be half-way through anything just then. A run that it has half sent to a process
Celery then waits for, for ever, and for one of which it has half read that it was accepted, for 30 seconds
(celery/concurrency/asynpool.py: `ResultHandler.on_stop_not_started`). So the signal only wakes the loop,
which calls the handler itself, as soon as every run that was sent has been accepted.

Threads and a solo pool cannot end what they run, which Celery's handler does not expect. There the worker is
drained instead, as by SIGTERM, within `worker_soft_shutdown_timeout`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from celery import signals
from celery.platforms import EX_FAILURE
from celery.worker import state

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.worker.drain import Drain
from celery_sqs_visibility.worker.request import can_end_runs

#: What Celery calls its handler (celery/apps/worker.py: `_shutdown_handler`).
HANDLER: Final = "worker_Cold"

SIGNALS: Final = (signal.SIGQUIT, signal.SIGTERM)

#: Seconds that processes have to accept what they are being sent. One that runs something else takes longer.
PATIENCE: Final = 3.0


class ColdShutdown:
    """Between the signals and the handler of one worker. Main thread, as signal handlers are.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`, which has an event loop.
        drain: the worker's other end.
        clock: the monotonic clock.
    """

    def __init__(self, consumer: Any, drain: Drain, clock: Clock = SYSTEM_CLOCK) -> None:
        self.consumer = consumer
        self._drain = drain
        self._clock = clock
        self._pid = os.getpid()
        self._asked: tuple[Callable[..., object], int] | None = None  # what the loop is to call, with what
        self._asked_at = 0.0
        self._draining = False  # in the handler's place
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)

    def take_over(self) -> None:
        """Be asked in the handlers' place, and come by with the loop; harmless if we are and do."""
        self.consumer.hub.add_reader(self._pipe[0], self._on_readable)
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if getattr(handler, "__name__", None) == HANDLER:
                signal.signal(number, self._in_place_of(handler))

    def begin(self) -> None:
        """Call the handler that the loop was to call, if any."""
        if self._asked is not None:
            (handler, number), self._asked = self._asked, None
            handler(number, None)

    def forget(self) -> None:
        """The loop comes by no more."""
        if self._pipe[0] in self.consumer.hub.readers:
            self.consumer.hub.remove_reader(self._pipe[0])
        for end in self._pipe:
            os.close(end)

    def _on_readable(self) -> None:
        if self._asked and self._is_sending() and self._clock.monotonic() < self._asked_at + PATIENCE:
            return  # the pipe stays readable: the loop comes by again at once
        with suppress(BlockingIOError):
            os.read(self._pipe[0], 64)
        self.begin()
        state.maybe_shutdown()  # at once: the loop would go on handing messages to a pool that is gone

    def _is_sending(self) -> bool:
        """Whether a process was sent a run, or a part of one, and has not accepted it."""
        pool = self.consumer.pool._pool  # noqa: SLF001 - see the module's docstring
        return any(job._write_to and not job._accepted for job in list(pool._cache.values()))  # noqa: SLF001

    def _in_place_of(self, handler: Any) -> Callable[[int, Any], None]:
        def ask(number: int, frame: Any) -> None:
            if os.getpid() != self._pid:
                handler(number, frame)
            elif not can_end_runs(self.consumer.pool):
                self._drain_instead(number)
            elif not self._loops():
                handler(number, frame)
            elif self._asked is None:
                self._asked, self._asked_at = (handler, number), self._clock.monotonic()
                os.write(self._pipe[1], b"\0")
            else:
                self.begin()  # who asks twice does not want to wait

        return ask

    def _drain_instead(self, number: int) -> None:
        state.should_stop = EX_FAILURE
        if self._draining:
            self._drain.ask(0, EX_FAILURE)  # as above
            return
        self._draining = True
        self._drain.ask(self.consumer.app.conf.worker_soft_shutdown_timeout, EX_FAILURE)
        signals.worker_shutting_down.send(
            sender=self.consumer.hostname, sig=signal.Signals(number).name, how="Cold", exitcode=EX_FAILURE
        )

    def _loops(self) -> bool:
        """Whether the loop comes by: not while the consumer connects anew, nor once a shutdown has begun."""
        return self._pipe[0] in self.consumer.hub.readers and state.should_stop is None
