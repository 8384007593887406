"""Celery's cold shutdown, by SIGQUIT or a SIGTERM remapped to it, begun where the main thread can bear it.

Celery does all of it in the signal's handler (celery/apps/worker.py: `on_cold_shutdown`): it waits for
`worker_soft_shutdown_timeout`, cancels what runs, and waits for the pool's processes. Where the worker has an
event loop, its thread may be half-way through anything just then. A run that it has half sent to a process
Celery then waits for, for ever, and for one of which it has half read that it was accepted, for 30 seconds
(celery/concurrency/asynpool.py: `ResultHandler.on_stop_not_started`). So the signal only wakes the loop,
which calls the handler itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from celery import signals
from celery.bootsteps import RUN
from celery.worker import state

#: What Celery calls its handler (celery/apps/worker.py: `_shutdown_handler`).
HANDLER: Final = "worker_Cold"

SIGNALS: Final = (signal.SIGQUIT, signal.SIGTERM)


class ColdShutdown:
    """Between the signals and the handler of one worker. Main thread, as signal handlers are.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`, which has an event loop.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self._pid = os.getpid()
        self._asked: tuple[Callable[..., object], int] | None = None  # what the loop is to call, with what
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

    def _on_readable(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._pipe[0], 64)
        self.begin()
        state.maybe_shutdown()  # at once: the loop would go on handing messages to a pool that is gone

    def _in_place_of(self, handler: Any) -> Callable[[int, Any], None]:
        def ask(number: int, frame: Any) -> None:
            if os.getpid() != self._pid or not self._loops():
                handler(number, frame)
            elif self._asked is None:
                self._asked = handler, number
                os.write(self._pipe[1], b"\0")
            else:
                self.begin()  # who asks twice does not want to wait

        return ask

    def _loops(self) -> bool:
        """Whether the loop comes by: it is left when a warm shutdown begins."""
        return self.consumer.blueprint.state == RUN and state.should_stop is None


_latest: ColdShutdown | None = None


def defer_cold_shutdown(consumer: Any) -> None:
    """Have that consumer's loop begin its worker's cold shutdown; harmless if it does. Main thread."""
    global _latest  # noqa: PLW0603 - a process has one worker at a time, and the signal tells not which
    if _latest is None or _latest.consumer is not consumer:
        _latest = ColdShutdown(consumer)
    _latest.take_over()


@signals.worker_shutting_down.connect(weak=False)
def _on_shutting_down(how: str = "", **_: Any) -> None:
    if how == "Warm" and _latest is not None:
        _latest.begin()  # the loop will not
