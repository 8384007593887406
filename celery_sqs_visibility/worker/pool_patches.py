"""Runs that Celery's pools forget, or whose ends they do not report."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial, wraps
from typing import Any, Final, cast
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError
from celery.platforms import EX_OK
from celery.worker import state

from celery_sqs_visibility.delivery.settlements import Release
from celery_sqs_visibility.delivery.threads import is_main_thread
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.worker.request import DeliveryRequest, GivenBackError
from celery_sqs_visibility.worker.worker_context import WorkerContext

#: A pool of threads looks this often whether one of them is left to itself.
RECHECK_SECONDS: Final = 0.2


class ThreadedRun:
    """A run in a pool without processes, which reports each of its ends to the right callback.

    The pool would lose a run that raises out of Celery's tracer, and pass one that ended with a BaseException
    to the callback for successes, which cannot take it (celery/concurrency/base.py: `apply_target`); nor does
    it heed what a callback raises, for lack of memory for one. Its message would never be settled, and be
    extended for 12 hours. A run that is lost all the same, with the pool's thread or before it, is gone: its
    message is given back then (see `delivery.watches`).

    Nothing runs if the message was given back while it waited in the pool; green pools would print what the
    request raises then.
    """

    def __init__(
        self,
        target: Any,
        request: DeliveryRequest | None,
        accept_callback: Any = None,
        callback: Any = None,
        error_callback: Any = None,
        **_: Any,
    ) -> None:
        self._target = target
        self._request = request
        self._accept = accept_callback
        self._on_success = callback
        self._on_error = error_callback
        self._given_back = False
        if request is not None and request.delivery is not None:
            # Celery keeps the request of a run that the pool has lost.
            request.delivery.current.carrier = ref(self)

    def accept(self, *args: Any, **kwargs: Any) -> None:
        """Tell the request that it begins. The run's thread, before the run."""
        try:
            if self._accept is not None:
                self._accept(*args, **kwargs)
        except GivenBackError:
            self._given_back = True
        except Exception as exc:  # noqa: BLE001 - it is logged
            self._given_back = True
            self._come_back(exc)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, if it may; an exception is returned, as from a process pool."""
        if self._given_back:
            return None
        try:
            return self._target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the request gets it, as from a process pool
            return ExceptionInfo()

    def end(self, result: Any, *args: Any, **kwargs: Any) -> None:
        """Tell the request how it ended. The run's thread, after the run."""
        if self._given_back:
            return
        try:
            if isinstance(result, ExceptionInfo) and self._on_error is not None:
                self._on_error(result)
            elif self._on_success is not None:
                self._on_success(result, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - it is logged
            self._come_back(exc)

    def _come_back(self, exc: Exception) -> None:
        if self._request is None:
            raise exc
        state.task_ready(self._request)
        self._request.message.come_back(exc)


#: What every run's frames have in common, in pools without processes.
RUN_CODE: Final = ThreadedRun.__call__.__code__


# ruff: noqa: SLF001 - Celery, billiard and Python have no public names for these

#: Asked for with each message where queues have an order, and nearly always the same.
known_slots: Final = lru_cache(maxsize=128)(Slots)


def slots_of(consumer: Any, *, collecting: bool = False, idle: bool = False) -> Slots:
    """Slots of a consumer's worker: how many tasks it runs at once. Any thread.

    The most it may run, where Celery scales its pool: Celery adds processes for reserved messages
    (celery/worker/autoscale.py: `Autoscaler._maybe_scale`).
    """
    pool, autoscaler = consumer.pool, getattr(consumer.controller, "autoscaler", None)
    # `num_processes` of greenlets was, until 5.7, the number that run. A pool that has stopped has none: it
    # asks billiard's, which is gone (celery/concurrency/prefork.py: `TaskPool.on_stop`).
    number = getattr(pool, "num_processes", pool.limit) if pool.uses_semaphore else pool.limit
    if autoscaler is not None:
        number = max(number, autoscaler.max_concurrency)
    prefetch_count, qos = consumer.initial_prefetch_count, consumer.qos  # `None` until it consumes
    raised = 0 if qos is None else max(0, qos.value - prefetch_count)
    return known_slots(number, prefetch_count, raised, collecting, idle)


def watched(pool: Any, *, processes: bool) -> Callable[..., Any]:
    """Wrap a pool's `apply_async`, so that no run begins too late, or ends unreported."""
    apply_async = pool.apply_async

    @wraps(apply_async)
    def apply(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        request = getattr(options.get("accept_callback"), "__self__", None)
        if not isinstance(request, DeliveryRequest):
            request = None
        elif request.is_early:
            for callback in ("callback", "error_callback"):
                options[callback] = partial(_report_end, request, options.get(callback))
        if not processes:
            run = ThreadedRun(target, request, **options)
            options |= {"accept_callback": run.accept, "callback": run.end}
            return apply_async(run, args, kwargs or {}, **options)
        if request is not None and not request.dispatch():
            raise TaskRevokedError(request.id)
        try:
            return apply_async(target, args, kwargs or {}, **options)
        except Exception as exc:
            if request is None:
                raise
            _refuse_unsent(pool, request, exc)
            raise TaskRevokedError(request.id) from exc  # or the slot would be lost

    return apply


def _report_end(
    request: DeliveryRequest, callback: Callable[..., Any] | None, *args: Any, **kwargs: Any
) -> None:
    """Tell the request that its run is over, then the callback that hears of this end."""
    request.ended()
    try:
        if callback is not None:
            callback(*args, **kwargs)
    finally:
        request.measure_run()


def _refuse_unsent(pool: Any, request: Any, exc: Exception) -> None:
    """Refuse a run that cannot be pickled for a process: its arguments are too deep, or memory is short."""
    for job in list(pool._pool._cache.values()):  # billiard would wait for it at the end
        if getattr(job, "_accept_callback", None) == request.on_accepted and not job._accepted:
            job.discard()
    if passes(exc):
        request.message.come_back(exc)
        state.task_ready(request)
        return
    state.task_ready(request)
    # Another worker's pool may be of another kind.
    request.message.refuse(f"it cannot be sent to a pool process: {exc!r}", others_may=True)


def give_back_unsent(consumer: Any) -> None:
    """Free the slot of a run that cannot be handed to the pool, and let its message come back. Main thread.

    Celery frees the slots of revoked runs only (celery/worker/worker.py: `WorkController._process_task`).
    Other slots would be lost; a worker that has lost all of them would hold its messages, and run nothing.
    """
    worker = consumer.controller
    process = worker._process_task

    @wraps(process)
    def process_or_give_back(request: Any) -> None:
        try:
            process(request)
        except Exception as exc:
            if not isinstance(request, DeliveryRequest):
                raise
            try:
                request.message.come_back(exc)
                state.task_ready(request)
            finally:
                if worker.semaphore is not None:
                    worker._quick_release()

    worker._process_task = process_or_give_back
    if worker.semaphore is None:  # Celery has bound the other one
        consumer.on_task_request = process_or_give_back


def release_in_turn(worker: Any) -> None:
    """Free the slots of runs that may not begin one after the other. Main thread.

    A freed slot goes to the next run that waits for one, within the call that frees it. A run that was
    revoked or given back meanwhile frees it again, within that call (celery/worker/worker.py:
    `WorkController._process_task`). Some hundred in a row would exceed the recursion limit, which ends the
    worker.
    """
    release = worker._quick_release
    owed = 0
    releasing = False

    @wraps(release)
    def release_one() -> None:
        nonlocal owed, releasing
        owed += 1
        if releasing:
            return
        releasing = True
        try:
            while owed:
                owed -= 1
                release()
        finally:
            releasing = False

    worker._quick_release = release_one


def leave_runs(pool: Any, worker: WorkerContext, controller: Any) -> None:
    """Let a pool of threads and the interpreter end without waiting for runs that were left.

    Celery waits for all (celery/concurrency/thread.py: `TaskPool.on_stop`), and so does Python, before it
    calls `atexit` hooks. Main thread.
    """
    executor = getattr(pool, "executor", None)
    if executor is None:
        return

    def on_stop() -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        for thread in list(executor._threads):
            while thread.is_alive() and thread.ident not in worker.left:
                thread.join(RECHECK_SECONDS)

    pool.on_stop = on_stop
    if is_main_thread():
        # Called first, since it is registered last: before those of concurrent.futures, which join.
        cast("Any", threading)._register_atexit(lambda: _exit_without_runs(worker, controller))


def _exit_without_runs(worker: WorkerContext, controller: Any) -> None:
    """End the interpreter where a run is left: its thread cannot be ended, and would be waited for."""
    if not any(thread.ident in worker.left for thread in threading.enumerate()):
        return
    cast("Any", atexit)._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(controller.exitcode or EX_OK)


def keep_what_was_sent(pool: Any) -> None:
    """Keep a pool from forgetting runs that one of its processes has. Main thread.

    When a consumer ends, also to connect anew, Celery forgets runs, for the broker to hand them out again:
    those that no process has accepted yet and, in 5.5, all of them (celery/concurrency/asynpool.py:
    `AsynPool.flush`). At a shutdown it also leaves a half-sent run half-sent, because it closes its pool
    first. But a process runs what it was sent, and its message is held.
    """
    flush = pool.flush
    if flush is None or hasattr(flush, "__wrapped__"):  # there is none without an event loop
        return
    processes = pool._pool  # billiard's pool
    cache = processes._cache  # the runs that billiard waits for

    @wraps(flush)
    def flush_the_rest() -> None:
        runs = dict(cache)
        for job in runs.values():
            _finish_sending(processes, job)
        flush()
        for number, job in runs.items():
            if number not in cache and not job.ready():
                _keep_or_settle(processes, number, job)

    pool.flush = flush_the_rest


def _finish_sending(processes: Any, job: Any) -> None:
    writer = getattr(job, "_writer", lambda: None)()
    if writer is not None and writer in processes._active_writers:
        processes._flush_writer(job._write_to, writer)


def _keep_or_settle(processes: Any, number: int, job: Any) -> None:
    """Keep a run that a process has, for billiard to hear of its end; settle any other."""
    if job._accepted:
        if any(process.pid == job._worker_pid for process in processes._pool):
            processes._cache[number] = job
        else:  # billiard looked for jobs of this process while this one was forgotten
            processes.on_job_process_lost(job, job._worker_pid, 0)
    elif job._write_to is not None and job._write_to._is_alive():
        processes._cache[number] = job
    else:
        request = getattr(job._accept_callback, "__self__", None)
        if isinstance(request, DeliveryRequest):
            request.settle(Release())
