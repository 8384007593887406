"""What Celery's pools do not say, or forget, of the runs that they were given."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_sqs_visibility.delivery.model import Release
from celery_sqs_visibility.request import DeliveryRequest


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

        def on_result(result: Any, *more: Any, **named: Any) -> Any:
            if isinstance(result, ExceptionInfo) and on_error is not None:
                return on_error(result)
            return on_success(result, *more, **named) if on_success is not None else None

        if not processes:
            return apply_async(_heard(target), args, kwargs or {}, **{**options, "callback": on_result})
        try:
            return apply_async(target, args, kwargs or {}, **options)
        except Exception as exc:
            if request is None:
                raise
            _not_sent(pool, request, exc)
            raise TaskRevokedError(request.id) from exc  # has Celery free the slot

    return apply


def _not_sent(pool: Any, request: Any, exc: Exception) -> None:
    """A run could not be sent to the pool's processes: arguments nested too deep to be pickled, for one."""
    for job in list(pool._pool._cache.values()):  # noqa: SLF001 - billiard would wait for it at the end
        if getattr(job, "_callback", None) == request.on_success and not job._accepted:  # noqa: SLF001
            job.discard()
    state.task_ready(request)
    # Another worker's pool may be of another kind.
    request.message.refuse(f"it cannot be sent to a pool process: {exc!r}", others_may=True)


def keep_what_was_sent(pool: Any) -> None:
    """Have a pool with processes forget no run that one of them has, though it did not say so yet.

    When a consumer ends, Celery forgets them for the broker to hand out again, and never reads how they
    ended (celery/concurrency/asynpool.py: `AsynPool.flush`). But what was sent runs, and its message is held.
    What was not sent is given back. Main thread.
    """
    flush = pool.flush
    if flush is None or hasattr(flush, "__wrapped__"):  # without an event loop there is none
        return
    cache = pool._pool._cache  # noqa: SLF001 - has the runs that billiard waits for at the end

    @wraps(flush)
    def flush_the_rest() -> None:
        unread = {number: job for number, job in cache.items() if not job._accepted}  # noqa: SLF001
        flush()
        for number, job in unread.items():
            if number in cache or job.ready():
                continue
            sent_to = job._write_to  # noqa: SLF001
            if sent_to is not None and sent_to._is_alive():  # noqa: SLF001
                cache[number] = job
                continue
            request = getattr(job._callback, "__self__", None)  # noqa: SLF001
            if isinstance(request, DeliveryRequest):
                request.settle(Release())

    pool.flush = flush_the_rest


def _heard(target: Callable[..., Any]) -> Callable[..., Any]:
    """What a pool runs, but an exception out of it is a result."""

    @wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - told to the request, as a process pool would
            return ExceptionInfo()

    return run
