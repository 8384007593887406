"""A worker's second bootstep: how it ends, warm, cold, or without a signal.

Imported in workers of our transport only, see `worker`.
"""

from __future__ import annotations

import math
import os
from typing import Any, Final

from celery import bootsteps, signals
from celery.worker import state

from celery_sqs_visibility.delivery.lease_table import lease_table
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.cold_shutdown import ColdShutdown
from celery_sqs_visibility.worker.drain import Drain

#: The descriptor of what this process reads from.
STDIN: Final = 0


class Endings(bootsteps.StartStopStep):
    """One worker's drain (SIGTERM, and ends that no signal tells) and cold shutdown (SIGQUIT)."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._drain: Drain | None = None
        self._told = False  # whether a signal has told this worker to end
        self._at_terminal = os.isatty(STDIN)
        self._cold_shutdown: ColdShutdown | None = None

    def include_if(self, parent: Any) -> bool:
        """Whether the consumer is on our transport."""
        return isinstance(parent.conninfo.transport, Transport)

    def create(self, c: Any) -> None:
        """Have Celery tell that the worker ends (celery/worker/worker.py: `signal_consumer_close`)."""
        c.close = self._on_close

    def start(self, c: Any) -> None:
        """Be ready for the end; again, whenever the consumer has connected anew. Main thread."""
        global _of_this_process  # noqa: PLW0603 - see there
        if self._drain is None:
            self._drain = Drain(c)
            self._drain.watch()
            if c.hub is not None:
                self._cold_shutdown = ColdShutdown(c, self._drain)
            _of_this_process = self
        if self._cold_shutdown is not None:
            self._cold_shutdown.take_over()

    def shutdown(self, c: Any) -> None:  # noqa: ARG002 - Celery's signature
        """The worker has stopped, but for its polls in flight. Main thread, before the channel is closed."""
        global _of_this_process  # noqa: PLW0603 - see there
        if self._drain is not None:
            self._drain.finish()
        _of_this_process = None  # not before: another signal ends the wait
        if self._drain is not None:
            self._drain.forget()
        if self._cold_shutdown is not None:
            self._cold_shutdown.forget()
        self._drain = self._cold_shutdown = None

    def on_shutting_down(self, how: str, sig: str) -> None:
        """The worker was told to end. In a signal handler: no I/O, and no lock."""
        _tell_runs()
        impatient = self._told or how == "Cold" or (sig == "SIGINT" and self._at_terminal)
        self._told = True
        if impatient and self._drain is not None:
            self._drain.hurry()
        if how == "Cold" and self._drain is not None:
            # Celery 5.5 goes on handing messages to a pool that is to end, and waits for their runs.
            self._drain.stop_polling()
        if how == "Warm" and self._drain is not None:
            self._drain.ask()
            if self._cold_shutdown is not None:
                self._cold_shutdown.begin()  # the loop will not

    def _on_close(self) -> None:
        """The worker stops, and maybe no signal said so.

        At SIGHUP, for one, after which it may run on as another. What runs has all its time. Main thread.
        """
        if self._drain is not None and not state.should_terminate:
            _tell_runs()
            self._drain.ask(math.inf)


def _tell_runs() -> None:
    if (leases := lease_table()) is not None:
        leases.stop()


#: A process has one worker at a time, and Celery's signal does not say which. To connect each of them would
#: take a lock that the signal's handlers take, too.
_of_this_process: Endings | None = None


@signals.worker_shutting_down.connect(weak=False)
def _on_shutting_down(how: str = "", sig: str = "", **_: Any) -> None:
    if _of_this_process is not None:
        _of_this_process.on_shutting_down(how, sig)
