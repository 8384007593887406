"""Contacts with Celery's pools, and with billiard's processes below them. Main thread, if not said."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import wait
from typing import Any, Final, cast

from billiard import common
from billiard.common import EX_SOFTWARE, human_status
from billiard.exceptions import WorkerLostError
from billiard.pool import CLOSE

#: What a pool's process does at SIGTERM (billiard/common.py: `_shutdown_cleanup`), which the end of a chord's
#: member puts off. Without it a SIGTERM might come between the decision to publish the chord's body and that.
POOLS_HANDLER: Final = cast("Any", common)._shutdown_cleanup

#: Signals that tell a pool's process to end. It ends by that handler with the signal's number as its status,
#: at a second one by the signal, or with billiard's own status if that is another signal.
ENDING_SIGNALS: Final = [getattr(signal, name, None) for name in ("SIGHUP", "SIGQUIT", "SIGTERM")]

TOLD_TO_END: Final = {
    human_status(status)
    for number in filter(None, ENDING_SIGNALS)
    for status in (number, -number, EX_SOFTWARE)
}


def was_told_to_end(lost: BaseException) -> bool:
    """Whether a run was lost because its process heeded a signal to end.

    The status is in the text alone (billiard/pool.py: `Pool.mark_as_worker_lost`). Without it a run that is
    ended together with its worker would have failed.
    """
    status = str(lost).partition(": ")[2].partition(" Job: ")[0]
    return isinstance(lost, WorkerLostError) and status in TOLD_TO_END


def is_told_to_end() -> bool:
    """Whether this process of a pool was told to end, and has not yet (billiard/common.py).

    In the run's thread. Without it an error in the cleanup of a run would be taken for the run's failure.
    """
    return bool(cast("Any", common)._should_have_exited[0])


def processes_of(pool: Any) -> list[Any] | None:
    """The processes of a prefork pool; `None` of another, and of one that has not started.

    Celery's pool has billiard's in its attribute `_pool`, and that has them in its own (billiard/pool.py:
    `Pool._pool`). Without them a probe does not notice that a pool has lost its processes.
    """
    children = getattr(getattr(pool, "_pool", None), "_pool", None)
    return list(children) if isinstance(children, list) else None


def size_of(pool: Any) -> int:
    """How many tasks a pool without processes runs at once. Any thread.

    Celery's pools of greenlets have gevent's or eventlet's in their attribute `_pool`
    (celery/concurrency/gevent.py: `TaskPool.grow`, which until 5.7 leaves `limit` as it is;
    celery/concurrency/eventlet.py). Without it a pool that has grown would not be given more, and one that
    has shrunk would hold what it cannot run.
    """
    size: int | None = getattr(getattr(pool, "_pool", None), "size", None)
    return pool.limit if size is None else size


def apply_by(pool: Any, apply: Callable[..., Any]) -> None:
    """Replace what gives runs to a pool (celery/concurrency/base.py: `BasePool.apply_async`).

    Celery binds it in the classes of its requests (celery/worker/request.py: `create_request_cls`). Without
    ours a run that raises out of Celery's tracer, or cannot be pickled, would never be settled.
    """
    pool.apply_async = apply


def stop_by(pool: Any, stop: Callable[[], None]) -> None:
    """Replace what waits for a pool of threads (celery/concurrency/thread.py: `TaskPool.on_stop`).

    Celery waits for all runs. Without it one that cannot be ended would keep the worker.
    """
    pool.on_stop = stop


def flush_by(pool: Any, flush: Callable[[], None]) -> None:
    """Replace what a pool forgets at a consumer's end (celery/concurrency/asynpool.py: `AsynPool.flush`).

    Celery forgets runs for the broker to hand them out again, though a process runs what it was sent. Without
    it the ends of such runs would not be heard, and their messages be held for 12 hours. Before Celery 5.7 it
    also forgets which processes are busy, and sends them the next runs.
    """
    pool.flush = flush


def hear_ended_runs_first(pool: Any) -> None:
    """Hear at once of a run that ends while a closed pool waits for its last ones. Harmless if repeated.

    Celery asks one process after the other, and sleeps half a second at each that has nothing to say
    (celery/concurrency/asynpool.py: `ResultHandler.on_stop_not_started`, `_flush_outqueue`). Without it a run
    among sixteen processes might end seven seconds before the shutdown timeout, and yet be given back.
    """
    results: Any = getattr(pool._pool, "_result_handler", None)
    flush = getattr(results, "_flush_outqueue", None)
    if flush is None or hasattr(flush, "__wrapped__"):  # there is none without an event loop
        return
    gone: set[int] = set()

    @wraps(flush)
    def flush_unless_another_is_ready(
        fd: int,
        remove: Callable[[int], object],
        processes: dict[int, Any],
        on_state_change: Callable[..., Any],
    ) -> None:
        def note(fd: int) -> None:
            gone.add(fd)
            remove(fd)

        ready = wait(processes.keys() - gone, 0)
        if not ready or fd in ready:
            flush(fd, note, processes, on_state_change)

    results._flush_outqueue = flush_unless_another_is_ready


class Jobs:
    """The runs that a prefork pool waits for: billiard's jobs, by number.

    billiard/pool.py: `Pool._cache`, `ApplyResult`; billiard/process.py: `_is_alive`. Without them a run that
    Celery forgets, or could not pickle, would not be found: see `flush_by`.

    Args:
        pool: has an event loop (celery/concurrency/asynpool.py: `AsynPool`), and has started.
    """

    def __init__(self, pool: Any) -> None:
        self._processes = pool._pool

    def copy(self) -> dict[int, Any]:
        """All jobs."""
        return dict(self._processes._cache)

    def finish_sending(self, job: Any) -> None:
        """Send a job to its process that is half sent (`_writer`, `_active_writers`, `_flush_writer`)."""
        writer = getattr(job, "_writer", lambda: None)()
        if writer is not None and writer in self._processes._active_writers:
            self._processes._flush_writer(job._write_to, writer)

    def take_unsent(self) -> list[Any]:
        """Remove the jobs that no process was sent (`AsynPool.outbound_buffer`). Returns them.

        A job that an ended process left unread stays: the pool closes the pipe that holds it, so that the
        process's successor does not read it, and sends it again (`Pool.maintain_pool`). A closed pool starts
        no successors and only joins ended processes (`_join_exited_workers`): their jobs are removed, too.
        """
        if self._processes._state == CLOSE:
            self._processes._join_exited_workers()
        unsent = list(self._processes.outbound_buffer)
        self._processes.outbound_buffer.clear()
        for job in unsent:
            job.discard()
        self._processes.maintain_pool()
        return unsent


def was_accepted(job: Any) -> bool:
    """Whether a process has said that it runs the job (billiard/pool.py: `ApplyResult._accepted`).

    Without it a run that was lost would be taken for one that never began.
    """
    return bool(job._accepted)


def request_of(job: Any) -> Any:
    """The request whose run the job is, by its callback (billiard/pool.py: `ApplyResult._accept_callback`).

    `None` of any other run. Without it a message whose run was forgotten could not be given back.
    """
    return getattr(getattr(job, "_accept_callback", None), "__self__", None)
