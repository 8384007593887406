"""What Celery's pools do not say, or forget, of the runs that they were given."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_sqs_visibility.delivery.model import Release
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.worker.request import DeliveryRequest, GivenBackError


def slots_of(consumer: Any) -> Slots:
    """How much a consumer's worker runs at once. Any thread.

    Where Celery scales its pool by itself, as much as it may: it looks at what waits, and adds processes for
    that (celery/worker/autoscale.py: `Autoscaler._maybe_scale`).
    """
    pool, autoscaler = consumer.pool, getattr(consumer.controller, "autoscaler", None)
    # Of greenlets Celery counted those that run, until 5.7.
    number = pool.num_processes if pool.uses_semaphore else pool.limit
    if autoscaler is not None:
        number = max(number, autoscaler.max_concurrency)
    return Slots(number, consumer.initial_prefetch_count)


def watched(pool: Any, *, processes: bool) -> Callable[..., Any]:
    """A pool's `apply_async` that keeps a run from beginning too late, and from ending unheard of.

    Pools without processes lose a run that raises out of Celery's tracer, and hand one that ended with a
    BaseException to the callback for successes, which cannot take it (celery/concurrency/base.py:
    `apply_target`): the message would never be settled, and be extended for 12 hours. A pool with processes
    loses a slot by a run that it cannot send to them.
    """
    apply_async = pool.apply_async

    @wraps(apply_async)
    def apply(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        on_success = options.get("callback")
        on_error = options.get("error_callback")
        request = getattr(options.get("accept_callback"), "__self__", None)
        request = request if isinstance(request, DeliveryRequest) else None
        if processes and request is not None and not request.dispatch():
            raise TaskRevokedError(request.id)

        if request is not None and not request.task.acks_late:
            on_success, on_error = _told(request, on_success), _told(request, on_error)
            options |= {"callback": on_success, "error_callback": on_error}

        def on_result(result: Any, *more: Any, **named: Any) -> Any:
            if isinstance(result, ExceptionInfo) and on_error is not None:
                return on_error(result)
            return on_success(result, *more, **named) if on_success is not None else None

        if not processes:
            options["callback"] = on_result
            if request is not None:
                target, options = _unless_given_back(target, options)
            return apply_async(_heard(target), args, kwargs or {}, **options)
        try:
            return apply_async(target, args, kwargs or {}, **options)
        except Exception as exc:
            if request is None:
                raise
            _not_sent(pool, request, exc)
            raise TaskRevokedError(request.id) from exc  # has Celery free the slot

    return apply


def _unless_given_back(
    target: Callable[..., Any], options: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What a pool without processes runs, but nothing where the message was given back while it waited there.

    That is heard of where the pool says that the run begins. What is raised there green pools print.
    """
    accept, on_result = options["accept_callback"], options["callback"]
    given_back = False

    def accepted(*args: Any, **kwargs: Any) -> None:
        nonlocal given_back
        try:
            accept(*args, **kwargs)
        except GivenBackError:
            given_back = True

    @wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        return None if given_back else target(*args, **kwargs)

    def ended(*args: Any, **kwargs: Any) -> Any:
        return None if given_back else on_result(*args, **kwargs)

    return run, {**options, "accept_callback": accepted, "callback": ended}


def _told(request: DeliveryRequest, callback: Callable[..., Any] | None) -> Callable[..., Any]:
    """A callback for the end of a run that tells the request first."""

    @wraps(callback or request.ended)
    def tell(*args: Any, **kwargs: Any) -> Any:
        request.ended()
        return callback(*args, **kwargs) if callback is not None else None

    return tell


def _not_sent(pool: Any, request: Any, exc: Exception) -> None:
    """A run could not be sent to the pool's processes: arguments nested too deep to be pickled, for one."""
    for job in list(pool._pool._cache.values()):  # noqa: SLF001 - billiard would wait for it at the end
        if getattr(job, "_accept_callback", None) == request.on_accepted and not job._accepted:  # noqa: SLF001
            job.discard()
    state.task_ready(request)
    # Another worker's pool may be of another kind.
    request.message.refuse(f"it cannot be sent to a pool process: {exc!r}", others_may=True)


def release_in_turn(worker: Any) -> None:
    """Have runs that may not begin free their slots one after the other, and not each within the next.

    A slot that is freed goes to the next run that waits for one, within the call that frees it; one that was
    revoked or given back meanwhile frees it again, within that (celery/worker/worker.py:
    `WorkController._process_task`). Some hundred in a row would exceed the recursion limit, which ends the
    worker. Main thread.
    """
    release = worker._quick_release  # noqa: SLF001
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

    worker._quick_release = release_one  # noqa: SLF001


def keep_what_was_sent(pool: Any) -> None:
    """Have a pool with processes forget no run that one of them has.

    When a consumer ends, also to connect anew, Celery forgets runs for the broker to hand out again, and
    never reads how they ended: those that no process has accepted yet and, in 5.5, all of them
    (celery/concurrency/asynpool.py: `AsynPool.flush`). But what was sent runs, and its message is held.
    Main thread.
    """
    flush = pool.flush
    if flush is None or hasattr(flush, "__wrapped__"):  # without an event loop there is none
        return
    processes = pool._pool  # noqa: SLF001 - billiard's pool
    cache = processes._cache  # noqa: SLF001 - has the runs that billiard waits for

    @wraps(flush)
    def flush_the_rest() -> None:
        runs = dict(cache)
        flush()
        for number, job in runs.items():
            if number not in cache and not job.ready():
                _keep_or_settle(processes, number, job)

    pool.flush = flush_the_rest


def _keep_or_settle(processes: Any, number: int, job: Any) -> None:
    """Keep a run that a process has, for billiard to hear of its end; settle any other."""
    if job._accepted:  # noqa: SLF001 - billiard's job
        if any(process.pid == job._worker_pid for process in processes._pool):  # noqa: SLF001
            processes._cache[number] = job  # noqa: SLF001
        else:  # billiard has looked for jobs of this process, when this one was forgotten
            processes.on_job_process_lost(job, job._worker_pid, 0)  # noqa: SLF001
    elif job._write_to is not None and job._write_to._is_alive():  # noqa: SLF001
        processes._cache[number] = job  # noqa: SLF001
    else:
        request = getattr(job._accept_callback, "__self__", None)  # noqa: SLF001
        if isinstance(request, DeliveryRequest):
            request.settle(Release())


def _heard(target: Callable[..., Any]) -> Callable[..., Any]:
    """What a pool runs, but an exception out of it is a result."""

    @wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - told to the request, as a process pool would
            return ExceptionInfo()

    return run
