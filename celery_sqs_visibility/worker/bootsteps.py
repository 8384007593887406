"""Bootsteps of workers that consume from SQS: one for their messages, one for their end.

`celery_sqs_visibility.worker` gives their names to Celery, which imports them when it makes a consumer.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from celery import bootsteps, signals
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.platforms import EX_FAILURE, EX_OK
from celery.utils.log import in_sighandler
from celery.worker import state
from celery.worker.consumer.connection import Connection
from celery.worker.consumer.control import Control

from celery_sqs_visibility.contacts.pool import hear_ended_runs_first, kill_before_time_limits_are_told
from celery_sqs_visibility.contacts.worker import (
    COLD_HANDLER,
    RESTART_HANDLER,
    WARM_HANDLER,
    call_at_close,
    call_due_timers,
    connecting,
    keep_prefetch_count,
)
from celery_sqs_visibility.delivery.lease_table import lease_table, open_lease_table
from celery_sqs_visibility.delivery.threads import is_main_thread, start_thread
from celery_sqs_visibility.option_secrets import without_secrets
from celery_sqs_visibility.signals import send_signals
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.bound_tasks import BoundTasks
from celery_sqs_visibility.worker.drain import Drain, may_interrupt
from celery_sqs_visibility.worker.paused_tasks import wait_for_resume
from celery_sqs_visibility.worker.pool_patches import (
    flush_only_unsent,
    hand_over_requests,
    leave_runs,
    slots_of,
    watch_runs,
)
from celery_sqs_visibility.worker.rate_limits import RateLimits
from celery_sqs_visibility.worker.startup import (
    QueuesFirst,
    ask_store,
    leave_out_refused_queues,
    warn_of_clamped,
)
from celery_sqs_visibility.worker.validation import BadMessages
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests
from celery_sqs_visibility.worker.worker_context import WorkerContext


class SQSStep(bootsteps.StartStopStep):
    """A step of consumers on our transport."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Returns whether the consumer is on our transport."""
        return isinstance(parent.conninfo.transport, Transport)


class Deliveries(SQSStep):
    """Binds requests to their deliveries, and keeps invalid messages from Celery."""

    _store_asked = False

    def create(self, parent: Any) -> None:
        """Prepare the worker before it forks, so that children inherit the lease table."""
        quiet_dependencies()
        open_lease_table()
        send_signals()
        pool = parent.pool
        self._worker = WorkerContext(pool, has_processes=bool(pool.uses_semaphore))
        watch_runs(pool, self._worker)
        leave_runs(pool, self._worker, parent.controller)
        hand_over_requests(parent)
        keep_prefetch_count(parent)
        with parent.app.connection_for_read() as connection:
            given = connection.transport.client.transport_options
            warn_of_clamped(given)
            context = connection.transport.context
            context.receiving.slots = partial(slots_of, parent, self._worker)
            context.receiving.loop_late = self._worker.loop_late
            context.worker_name = parent.hostname
        self._context = context
        self._worker.waiting = waiting = WaitingRequests(parent)
        BoundTasks(parent, self._worker, context).bind()
        QueuesFirst(parent)
        leave_out_refused_queues(parent)
        BadMessages(parent)
        RateLimits(parent, waiting)
        if parent.conninfo.supports_exchange_type("fanout"):  # as Celery asks for remote control
            self._worker.waits_for_resume = partial(wait_for_resume, context.receiving.paused_tasks, waiting)
            self._join_remote_control(parent, context)

    @staticmethod
    def _join_remote_control(parent: Any, context: BrokerContext) -> None:
        """Join remote control as one node, even if replies and events go to another broker."""
        import celery_sqs_visibility.worker.control_commands  # noqa: F401, PLC0415 - workers without need none
        from celery_sqs_visibility.worker.trail import TRAIL  # noqa: PLC0415

        TRAIL.listen()

        # Celery publishes replies and events to `broker_write_url`, where callers publish their commands.
        with parent.app.connection_for_write() as connection:
            writing = connection.transport.context if isinstance(connection.transport, Transport) else context
        if writing is not context:
            writing.worker_name = parent.hostname
            context.control = writing.control

    def close(self, parent: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Stop trying brakes, and leave that to other workers, because this one ends. Main thread."""
        if self._worker.brakes is not None:
            self._worker.brakes.close()

    def info(self, parent: Any) -> Any:
        """Describe the broker as Celery does for `inspect stats`, without the secrets in its options.

        Runs after Celery's own step, and replaces its answer (celery/bootsteps.py: `Blueprint.info`).
        """
        said = next(step for step in parent.steps if isinstance(step, Connection)).info(parent)["broker"]
        if not isinstance(said, dict):
            return None
        return {"broker": {**said, "transport_options": without_secrets(said["transport_options"])}}

    def start(self, parent: Any) -> None:
        """Prepare the event loop, each time the consumer has connected."""
        if self._worker.has_processes:
            flush_only_unsent(parent.pool)
            hear_ended_runs_first(parent.pool)
            kill_before_time_limits_are_told(parent.pool)
            self._worker.hub = parent.hub
        if parent.hub is not None:
            leases = open_lease_table()
            parent.hub.add_reader(leases.fileno(), leases.on_readable)
            call_due_timers(parent.hub)
        if self._worker.brakes is not None:
            self._worker.brakes.connected()
        for step in parent.steps:
            if isinstance(step, Control):
                from celery_sqs_visibility.worker.control_commands import check_answers  # noqa: PLC0415

                check_answers(cast("Any", step).box.node)
        if self._worker.key_leases is not None and not self._store_asked:
            self._store_asked = True  # now that the pool's processes are forked
            start_thread(ask_store, "sqs-ask-store", self._context.coordination_store)


class Endings(SQSStep):
    """Begins the drain when a worker ends, with or without a signal.

    A warm shutdown goes on as Celery's. A cold one (SIGQUIT, SIGTERM under REMAP_SIGTERM=SIGQUIT, a second
    SIGINT) becomes a drain in which runs have `worker_soft_shutdown_timeout` seconds. Celery would do a cold
    shutdown inside the signal handler (celery/apps/worker.py: `on_cold_shutdown`). There its main thread may
    have sent half of a run to a pool process, for which it then waits for ever. And where the pool can't end
    runs (threads, solo), it waits until they end, beyond any SIGKILL.
    """

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._pid = os.getpid()
        self._controller = parent.controller
        self._hostname: str = parent.hostname
        self._soft_timeout: float = parent.app.conf.worker_soft_shutdown_timeout
        self._at_terminal = os.isatty(0)
        self._drain: Drain | None = None
        self._signalled = self._cold = self._embedded = self._over = False

    def create(self, parent: Any) -> None:
        """Hook into every way in which a worker ends."""
        call_at_close(parent, self._on_close)
        connecting(parent).before.insert(0, self._replace_handlers)
        # Before Celery installs its signal handlers, because connecting takes the lock that sending takes.
        # The uid is for Celery 5.5, which can't tell the methods of two workers apart.
        signals.worker_shutting_down.connect(
            self._on_signal, sender=self._hostname, dispatch_uid=str(id(self))
        )

    def start(self, parent: Any) -> None:
        """Get ready to end, each time the consumer has connected. Main thread."""
        if self._drain is None:
            self._drain = Drain(parent)
            self._embedded = not is_main_thread()
            self._drain.start()
            parent.connection.transport.context.on_remote_shutdown = self._on_remote_shutdown
        if not self._embedded:
            restart_by_module()
        self._replace_handlers()

    def shutdown(self, parent: Any) -> None:  # noqa: ARG002 - Celery's signature
        """End the drain: the worker has stopped, except for its polls in flight. Main thread.

        Runs before the channel is closed.
        """
        if (drain := self._drain) is not None:
            drain.finish()  # another signal makes this shorter
            self._drain, self._over = None, True
            drain.cancel()
            drain.end_broadcasts()

    def _on_signal(self, how: str = "", sig: str = "", **_: Any) -> None:
        """Begin or shorten the drain of a worker. In a signal handler: no I/O, no lock."""
        if self._over:  # the handlers may belong to another worker now
            return
        self._replace_handlers()  # Celery has just installed one for a second SIGINT
        drain = self._drain
        if drain is None:
            return
        _tell_tasks()
        if self._signalled and how == "Warm":
            drain.hurry()
            if (leases := lease_table()) is not None:
                leases.wake()  # the event loop, which must end: a signal does not interrupt its wait
        elif how == "Cold" or (sig == "SIGINT" and self._at_terminal):
            drain.shorten_polls()
        self._signalled = True
        if how == "Warm":
            drain.begin()
        else:
            drain.begin(0 if self._cold else self._soft_timeout, cold=True)
            self._cold = True
            self._controller.exitcode = EX_FAILURE

    def _on_remote_shutdown(self) -> None:
        """Treat Celery's command `shutdown` like a SIGTERM. The thread of Celery's mailbox."""
        cast("Any", state).should_stop = EX_OK
        signals.worker_shutting_down.send(
            sender=self._hostname, sig="remote control", how="Warm", exitcode=EX_OK
        )

    def _on_close(self) -> None:
        """Begin the drain of a worker that stops, perhaps without a signal of Celery's (SIGHUP). Main thread.

        Running tasks may take all the time they need, because the worker may be restarting. Celery forgets
        the exit status when it gives up for lack of file descriptors (celery/worker/worker.py:
        `WorkController.start`).
        """
        reason = sys.exc_info()[1]
        if isinstance(reason, WorkerTerminate) and self._controller.exitcode is None:
            self._controller.exitcode = reason.code
        if self._drain is not None and not state.should_terminate:
            _tell_tasks()
            self._drain.begin(math.inf)
            if self._embedded:  # its process goes on, and so do its last polls: see `QueueConsumer`
                self._drain.hurry()

    def _replace_handlers(self) -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            handler: Any = signal.getsignal(number)
            name = getattr(handler, "__name__", None)
            if name == COLD_HANDLER:
                signal.signal(number, partial(self._on_cold_signal, handler))
            elif name == WARM_HANDLER and number == signal.SIGINT:
                signal.signal(number, partial(self._on_interrupt, handler))

    def _on_interrupt(self, handler: Callable[[int, Any], object], number: int, frame: Any) -> None:
        """Treat the first SIGINT like a SIGTERM, because Celery would count it as a failure."""
        handler(number, frame)
        if os.getpid() == self._pid and not self._cold:
            cast("Any", state).should_stop = EX_OK

    def _on_cold_signal(self, handler: Callable[[int, Any], object], number: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            handler(number, frame)
            return
        if self._drain is None:  # the worker doesn't receive yet, or has ended: it checks the flag later
            cast("Any", state).should_terminate = EX_FAILURE
            return
        if self._drain.interrupts_main_thread:
            if may_interrupt(frame):
                raise WorkerShutdown(state.should_stop or EX_OK)
            return
        cast("Any", state).should_stop = EX_FAILURE
        name = signal.Signals(number).name
        with cast("Any", in_sighandler)():
            signals.worker_shutting_down.send(
                sender=self._hostname, sig=name, how="Cold", exitcode=EX_FAILURE
            )


def _tell_tasks() -> None:
    if (leases := lease_table()) is not None:
        leases.stop()


def quiet_dependencies() -> None:
    """Limit boto3 and its libraries to warnings and errors. A worker, after Celery has set up logging.

    Celery gives the root logger the level of `-l` (celery/app/log.py: `Logging.setup_logging_subsystem`),
    which loggers without a level of their own inherit. botocore then writes some hundred lines a request at
    DEBUG, and two a client at INFO.

    A level that was set before is kept. If a program sets up logging in place of Celery, nothing is changed.
    """
    if signals.setup_logging.receivers:
        return
    for logger in map(logging.getLogger, ("boto3", "botocore", "s3transfer", "urllib3")):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def restart_by_module() -> None:
    """Let Celery restart a worker that was started by `python -m` at SIGHUP. Main thread; repeatable.

    Celery runs `sys.argv` again. With `python -m celery` it begins with the path of Celery's `__main__.py`,
    which Python can't run by its path (celery/apps/worker.py: `_reload_current_worker`).
    """
    handler: Any = signal.getsignal(signal.SIGHUP)
    by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    if not by_module or getattr(handler, "__name__", None) != RESTART_HANDLER:
        return

    def restart(*args: Any) -> None:
        handler(*args)
        atexit.register(restore_command_line)  # runs before the hook that Celery has registered

    def restore_command_line() -> None:
        sys.argv[:] = sys.orig_argv[1:]

    signal.signal(signal.SIGHUP, restart)
