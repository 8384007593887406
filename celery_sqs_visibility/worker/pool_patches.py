"""Patches of Celery's pools, which forget some runs and don't report how some end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial, wraps
from typing import Any, Final
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError
from celery.platforms import EX_OK
from celery.worker import state

from celery_sqs_visibility.contacts.pool import (
    Jobs,
    replace_apply_async,
    replace_flush,
    replace_on_stop,
    request_of,
    size_of,
    was_accepted,
)
from celery_sqs_visibility.contacts.python import (
    call_before_threads_are_joined,
    call_exit_hooks,
    threads_of,
)
from celery_sqs_visibility.contacts.worker import replace_task_handover
from celery_sqs_visibility.core.settlements import RELEASE
from celery_sqs_visibility.delivery.threads import is_main_thread
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.worker.batches import batch_run_of
from celery_sqs_visibility.worker.request import DeliveryRequest, GivenBackError
from celery_sqs_visibility.worker.worker_context import WorkerContext

#: How often a thread pool that ends checks for abandoned runs.
RECHECK_SECONDS: Final = 0.2


class ThreadedRun:
    """A run in a pool without processes, which reports each end to the right callback.

    The pool loses a run that raises out of Celery's tracer. It passes a run that ended with a BaseException
    to the callback for successes, which fails (celery/concurrency/base.py: `apply_target`). And it ignores
    exceptions of callbacks. The message would never be settled, but extended for 12 hours. If a run is lost
    with the pool's thread, its message is given back by `delivery.watches`.

    A message that was given back while it waited in the pool does not run. The callback must not raise then:
    green pools would print the exception.
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
            request.delivery.carrier = ref(self)

    def accept(self, *args: Any, **kwargs: Any) -> None:
        """Tell the request that the run begins. The run's thread, before the run."""
        try:
            if self._accept is not None:
                self._accept(*args, **kwargs)
        except GivenBackError:
            self._given_back = True
        except Exception as exc:  # noqa: BLE001 - it is logged
            self._given_back = True
            self._come_back(exc)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task, if it may run. An exception is returned, as from a process pool."""
        if self._given_back:
            return None
        try:
            return self._target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the request gets it, as from a process pool
            return ExceptionInfo()

    def end(self, result: Any, *args: Any, **kwargs: Any) -> None:
        """Tell the request how the run ended. The run's thread, after the run."""
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


#: Code in the frames of every run of a pool without processes.
RUN_CODE: Final = ThreadedRun.__call__.__code__


#: Called for each message if queues have an order, nearly always with the same arguments.
known_slots: Final = lru_cache(maxsize=128)(Slots)


def slots_of(consumer: Any, worker: WorkerContext) -> Slots:
    """The slots of a consumer's worker. Any thread.

    Celery's prefetch count can't be used: it counts the current processes of a pool that scales, and includes
    tasks that wait for an ETA, if `worker_eta_task_limit` allows that.
    """
    number, idle = number_of_slots(consumer), not state.active_requests
    # kombu 5.5 has no such limit, and there is no QoS before the worker consumes.
    eta_task_limit = getattr(consumer.qos, "max_prefetch", None)
    return known_slots(number, number * consumer.prefetch_multiplier, eta_task_limit, worker.collects, idle)


def number_of_slots(consumer: Any) -> int:
    """The number of tasks that a consumer's worker can run at once. Any thread.

    For a pool that Celery scales, this is the maximum: Celery adds processes for reserved messages
    (celery/worker/autoscale.py: `Autoscaler._maybe_scale`).
    """
    pool, autoscaler = consumer.pool, getattr(consumer.controller, "autoscaler", None)
    # Until 5.7, `num_processes` of greenlets was the number of running ones. A pool that has stopped has
    # none: it asks billiard's pool, which is gone (celery/concurrency/prefork.py: `TaskPool.on_stop`).
    number: int = getattr(pool, "num_processes", pool.limit) if pool.uses_semaphore else size_of(pool)
    return number if autoscaler is None else max(number, autoscaler.max_concurrency)


def watch_runs(pool: Any, worker: WorkerContext) -> None:
    """Watch a pool's runs, so that none begins too late or ends unreported. Main thread."""
    apply_async, processes = pool.apply_async, worker.has_processes

    @wraps(apply_async)
    def apply(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        request = getattr(options.get("accept_callback"), "__self__", None)
        if not isinstance(request, DeliveryRequest):
            request = None
            if worker.collects and not _tell_batch(args, options, processes=processes):
                return None
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
            raise TaskRevokedError(request.id) from exc  # otherwise the slot would be lost

    replace_apply_async(pool, apply)


def _tell_batch(args: Any, options: dict[str, Any], *, processes: bool) -> bool:
    """If these are the arguments of a batch, prepare its run. Returns whether there is a run."""
    batch = batch_run_of(args)
    if batch is not None:
        # A process gets a copy of the members now; a thread gets these when it begins.
        if processes and not batch.keep(DeliveryRequest.dispatch):
            return False
        options |= batch.callbacks(options)
    return True


def _report_end(
    request: DeliveryRequest, callback: Callable[..., Any] | None, *args: Any, **kwargs: Any
) -> None:
    """Tell the request that its run is over, then call the pool's callback."""
    request.ended()
    try:
        if callback is not None:
            callback(*args, **kwargs)
    finally:
        request.measure_run()


def _refuse_unsent(pool: Any, request: Any, exc: Exception) -> None:
    """Refuse a run that can't be pickled for a process: its arguments are too deep, or memory is short."""
    for job in Jobs(pool).copy().values():  # billiard would wait for it at the end
        if request_of(job) is request and not was_accepted(job):
            job.discard()
    state.task_ready(request)
    if passes(exc):
        request.message.come_back(exc)
        return
    # Another worker may have another kind of pool.
    request.message.refuse(f"it cannot be sent to a pool process: {exc!r}", others_may=True)


def hand_over_requests(consumer: Any) -> None:
    """Give a consumer's requests to its pool, and free the slots of those that it refuses. Main thread.

    Messages of refused requests come back, unless they were revoked.
    """
    pool = consumer.pool

    def hand_over(request: Any) -> None:
        try:
            request.execute_using_pool(pool)
        except TaskRevokedError:
            free_slot()
        except Exception as exc:
            if not isinstance(request, DeliveryRequest):
                raise
            try:
                state.task_ready(request)  # first: until then Celery keeps the request
                request.message.come_back(exc)
            finally:
                free_slot()

    free_slot = one_by_one(replace_task_handover(consumer, hand_over))


def one_by_one(release: Callable[[], object]) -> Callable[[], None]:
    """Wrap `release` so that slots are freed one after the other, not recursively. Main thread.

    A freed slot goes to the next waiting run, within the call that frees it. If that run was revoked or given
    back meanwhile, it frees the slot again, within the same call. A few hundred in a row would exceed the
    recursion limit, which ends the worker.
    """
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

    return release_one


def leave_runs(pool: Any, worker: WorkerContext, controller: Any) -> None:
    """Let a thread pool and the interpreter end without waiting for abandoned runs. Main thread."""
    executor = getattr(pool, "executor", None)
    if executor is None:
        return

    def stop() -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        for thread in threads_of(executor):
            while thread.is_alive() and thread.ident not in worker.left:
                thread.join(RECHECK_SECONDS)

    replace_on_stop(pool, stop)
    if is_main_thread():
        # Registered last, so called first: before the hook of concurrent.futures, which joins threads.
        call_before_threads_are_joined(lambda: _exit_without_runs(worker, controller))


def _exit_without_runs(worker: WorkerContext, controller: Any) -> None:
    """Exit if a run was abandoned: the interpreter would wait for its thread, which can't be ended."""
    if not any(thread.ident in worker.left for thread in threading.enumerate()):
        return
    call_exit_hooks()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(controller.exitcode or EX_OK)


def flush_only_unsent(pool: Any) -> None:
    """Let a pool forget only runs that were sent to no process. Main thread; idempotent.

    When a consumer ends, even to reconnect, Celery forgets the runs that no process has accepted yet and, in
    5.5, all of them. At a shutdown it also leaves a half-sent run half-sent, because it closes its pool
    first. But a process runs what it was sent, and its message is held.
    """
    flush = pool.flush
    if flush is None or hasattr(flush, "__wrapped__"):  # `None` without an event loop
        return
    jobs = Jobs(pool)

    @wraps(flush)
    def forget_unsent() -> None:
        for job in jobs.copy().values():
            jobs.finish_sending(job)
        for job in jobs.take_unsent():
            request = request_of(job)
            if isinstance(request, DeliveryRequest):
                request.settle(RELEASE)

    replace_flush(pool, forget_unsent)
