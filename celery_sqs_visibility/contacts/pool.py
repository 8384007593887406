"""Contacts with Celery's pools and billiard's processes. Main thread, unless a docstring names another."""

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

#: A pool process's handler of SIGTERM (billiard/common.py: `_shutdown_cleanup`). The end of a chord's member
#: defers it. Without it a SIGTERM might come after the decision to publish the chord's body, and prevent it.
POOLS_HANDLER: Final = cast("Any", common)._shutdown_cleanup

#: Statuses of a pool's process that a signal told to end. At the first, the handler exits with the signal's
#: number. The same signal again kills the process; another one makes it exit with billiard's own status.
TOLD_TO_END: Final = {
    human_status(status)
    for name in ("SIGHUP", "SIGQUIT", "SIGTERM")
    if (number := getattr(signal, name, None)) is not None
    for status in (number, -number, EX_SOFTWARE)
}


def was_told_to_end(lost: BaseException) -> bool:
    """Return whether a run was lost because a signal told its process to end.

    Only the exception's text has the status (billiard/pool.py: `Pool.mark_as_worker_lost`). Without it a run
    that ends together with its worker would count as failed.
    """
    status = str(lost).partition(": ")[2].partition(" Job: ")[0]
    return isinstance(lost, WorkerLostError) and status in TOLD_TO_END


def is_told_to_end() -> bool:
    """Return whether this pool process was told to end but still runs (billiard/common.py). The run's thread.

    Without it an error in the cleanup of a run would count as the run's failure.
    """
    return bool(cast("Any", common)._should_have_exited[0])


def processes_of(pool: Any) -> list[Any] | None:
    """Return a prefork pool's processes; `None` for other pools, and before the start.

    Celery's pool has billiard's in `_pool`, which has its processes in its own `_pool` (billiard/pool.py:
    `Pool._pool`). Without them a health probe does not notice that a pool has lost its processes.
    """
    children = getattr(getattr(pool, "_pool", None), "_pool", None)
    return list(children) if isinstance(children, list) else None


def size_of(pool: Any) -> int:
    """Return how many tasks a pool without processes runs at once. Any thread.

    Celery's pools of greenlets have gevent's or eventlet's pool in `_pool` (celery/concurrency/gevent.py:
    `TaskPool.grow`, which before 5.7 does not change `limit`; celery/concurrency/eventlet.py). Without it a
    pool that has grown would get no more tasks, and one that has shrunk would hold tasks it cannot run.
    """
    size: int | None = getattr(getattr(pool, "_pool", None), "size", None)
    return pool.limit if size is None else size


def replace_apply_async(pool: Any, apply: Callable[..., Any]) -> None:
    """Replace the method that starts runs in a pool (celery/concurrency/base.py: `BasePool.apply_async`).

    Celery binds it in its request classes (celery/worker/request.py: `create_request_cls`). Without ours the
    message of a run that raises out of Celery's tracer, or cannot be pickled, would never be settled.
    """
    pool.apply_async = apply


def replace_on_stop(pool: Any, stop: Callable[[], None]) -> None:
    """Replace the method that waits for the runs of a thread pool (`TaskPool.on_stop`).

    Celery's waits for all (celery/concurrency/thread.py). Without ours a run that cannot be ended would keep
    the worker alive.
    """
    pool.on_stop = stop


def replace_flush(pool: Any, flush: Callable[[], None]) -> None:
    """Replace the method that forgets a pool's runs when a consumer ends (`AsynPool.flush`).

    Celery expects the broker to redeliver them (celery/concurrency/asynpool.py), but their processes run what
    they were sent. Without ours nobody would hear of the ends of these runs, and their messages would be held
    for 12 hours. Before 5.7 Celery also forgets which processes are busy, and sends them the next runs.
    """
    pool.flush = flush


def hear_ended_runs_first(pool: Any) -> None:
    """Learn at once of a run that ends while a closed pool waits for its last runs. Idempotent.

    Celery asks one process after the other, and sleeps half a second for each that has no result
    (celery/concurrency/asynpool.py: `ResultHandler.on_stop_not_started`, `_flush_outqueue`). Without this one
    of sixteen runs might end seven seconds before the shutdown timeout, and still be given back.
    """
    results: Any = getattr(pool._pool, "_result_handler", None)
    flush = getattr(results, "_flush_outqueue", None)
    if flush is None or hasattr(flush, "__wrapped__"):  # without an event loop there is none
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


def kill_before_time_limits_are_told(pool: Any) -> None:
    """Kill a process whose run exceeds its hard time limit before its request hears of that. Idempotent.

    billiard kills it afterwards (billiard/pool.py: `TimeoutHandler.on_hard_timeout`, `_trywaitkill`). Without
    this one the run would go on beside its next one, or store its success after its failure, while its
    request waits for the result backend or for a task's handlers.
    """
    processes = pool._pool
    tell = getattr(processes, "on_hard_timeout", None)
    if tell is None or hasattr(tell, "__wrapped__"):  # without an event loop there is none
        return
    handler = processes._timeout_handler

    @wraps(tell)
    def kill_and_tell(job: Any) -> None:
        process, _ = handler._process_by_pid(job._worker_pid)
        if process is not None and not job.ready():
            handler._trywaitkill(process)
        tell(job)

    processes.on_hard_timeout = kill_and_tell


class Jobs:
    """The runs that a prefork pool waits for: billiard's jobs, by number.

    billiard/pool.py: `Pool._cache`, `ApplyResult`; billiard/process.py: `_is_alive`. Without them a run that
    Celery forgets (`replace_flush`) or cannot pickle would not be found.

    Args:
        pool: a started pool with an event loop (celery/concurrency/asynpool.py: `AsynPool`).
    """

    def __init__(self, pool: Any) -> None:
        self._processes = pool._pool

    def copy(self) -> dict[int, Any]:
        """Return all jobs."""
        return dict(self._processes._cache)

    def finish_sending(self, job: Any) -> None:
        """Send the rest of a job to its process, if a part is sent (`_active_writers`, `_flush_writer`)."""
        writer = getattr(job, "_writer", lambda: None)()
        if writer is not None and writer in self._processes._active_writers:
            self._processes._flush_writer(job._write_to, writer)

    def take_unsent(self) -> list[Any]:
        """Remove and return the jobs that were not sent to a process (`AsynPool.outbound_buffer`).

        A job that a dead process left unread stays: the pool closes its pipe, so that the next process does
        not read it, and sends it again (`Pool.maintain_pool`). A closed pool starts no processes, and only
        joins dead ones (`_join_exited_workers`): the jobs that these left unread are removed, too.
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
    """Return whether a process has reported that it runs the job (billiard/pool.py: `ApplyResult._accepted`).

    Without it a lost run would count as one that never began.
    """
    return bool(job._accepted)


def request_of(job: Any) -> Any:
    """Return the request whose run the job is; `None` if it has none.

    It is found by its callback (billiard/pool.py: `ApplyResult._accept_callback`). Without it the message of
    a forgotten run could not be given back.
    """
    return getattr(getattr(job, "_accept_callback", None), "__self__", None)
