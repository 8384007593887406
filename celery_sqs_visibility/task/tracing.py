"""How a run of a `VisibilityTask` ended, decided in the pool's child, where the exception is.

Celery's tracer (celery/app/trace.py: `build_tracer`) runs a task and records its end. Two things are refined
for messages from SQS. An exception of the task's own code becomes, innermost, a `VisibilityRetry` where the
message comes back, so that Celery's autoretry lets it pass. An error of Celery's outside the task's code
(storing the result, publishing the next step of a chain) is no failure of the task: the message comes back,
and no errback is called.

Everything here runs in the pool's child: a process, a thread, a greenlet, or the main thread of a solo pool.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Task, states
from celery.app.task import Context
from celery.app.trace import TraceInfo, build_tracer, trace_ok_t
from celery.exceptions import Ignore, Reject, Retry

from celery_sqs_visibility.transport import publish_retries

logger = logging.getLogger(__name__)

#: A task of Celery's own that polls for a chord, and publishes its body before it ends.
CHORD_UNLOCK = "celery.chord_unlock"

#: Where Celery's tracer is.
TRACE_FILE = build_tracer.__code__.co_filename

#: The header by which a retry that was published tells the limit that was given to `self.retry()`.
LIMIT_HEADER = "visibility_max_retries"

# Celery takes every key of a request that its Context does not know for a header of the message, and sends
# it along with retries and chains (celery/app/task.py: `Context._get_custom_headers`). Ours it shall know;
# and so `self.request.sqs` is `None` wherever there is no SQS.
Context.sqs = None
Context.visibility_lease = None
Context.visibility_max_retries = None
#: The exception with which the task fails for good, as the task's own code and settings decided.
Context.visibility_final = None
#: Whether the task's own code runs: a call of `self.run()` within it is part of that.
Context.visibility_in_run = False


class VisibilityRetry(Retry):
    """The message comes back by itself.

    Attributes:
        delay: seconds to hide it, or `None`: the rest of its visibility timeout.
    """

    def __init__(
        self, message: str | None = None, exc: BaseException | None = None, when: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(message, exc, when, **kwargs)
        self.delay: float | None = when

    def humanize(self) -> str:
        """For Celery's log line, "Task retry: ..."."""
        return "when its visibility timeout runs out" if self.delay is None else f"in {self.delay:g}s"


class DeliveryTrace(TraceInfo):
    """What Celery's tracer records of a run that did not succeed, and tells the main process."""

    __slots__ = ("einfo",)

    def handle_error_state(
        self,
        task: Any,
        req: Context,
        eager: bool = False,  # noqa: FBT001, FBT002
        call_errbacks: bool = True,  # noqa: FBT001, FBT002
    ) -> ExceptionInfo:
        """Record it: as RETRY if it comes back, otherwise as the FAILURE of the task's own exception."""
        record = partial(super().handle_error_state, task, req, eager=eager)
        if self.state == states.FAILURE and self.retval is not req.visibility_final:
            retry = task.retry_after_error_outside(req, self.retval)
            if retry is not None:
                self.state, self.retval = states.RETRY, retry
                self.einfo = _raised(retry, lambda: record(call_errbacks=False))
                return self.einfo
            # Storing the task's own failure has failed, maybe: it is that failure which is stored now.
            self.retval = req.visibility_final or self.retval
        self.einfo = record(call_errbacks=call_errbacks)
        return self.einfo


def trace_deliveries(task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Refine a tracer that Celery has built for a task: messages from SQS are traced by `DeliveryTrace`."""
    ours: Callable[..., Any] | None = None

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
        nonlocal ours
        if request is None or not request.get("sqs"):
            return tracer(uuid, args, kwargs, request)
        if ours is None:
            hostname = request.get("hostname")
            ours = build_tracer(task.name, task, hostname=hostname, Info=DeliveryTrace, app=task.app)
        try:
            _prepare(task, request)
            result, info, seconds, shown = ours(uuid, args, kwargs, request)
        except MemoryError:
            raise
        except Exception as exc:
            retry = None
            # The tracer itself rejects where it cannot publish what follows a result stored before.
            if not isinstance(exc, Reject) or is_raised_in(TRACE_FILE, exc.__traceback__):
                retry = task.retry_after_error_outside(Context(request, args=args, kwargs=kwargs), exc)
            if retry is None:
                raise
            logger.exception("Celery could not record how task %s[%s] ended; it comes back", task.name, uuid)
            return trace_ok_t(_raised(retry, ExceptionInfo), DeliveryTrace(states.RETRY, retry), 0.0, None)
        finally:
            publish_retries.clear_deadline()
        _tell_release(task, request, info)
        # Where Celery itself failed, `result` is that error, whatever was made of it.
        return trace_ok_t(getattr(info, "einfo", result), info, seconds, shown)

    return trace


def turning_failures(task: Any, function: Callable[..., Any], *, ends: bool = True) -> Callable[..., Any]:
    """Wrap a part of a task's own code, so that its failure becomes what Celery is to see.

    The outermost call alone: to the task's code, which may call `self.run()`, its exceptions are its own.

    Args:
        task: whose code it is.
        function: the part.
        ends: whether the task's own code is over when it returns.
    """

    @wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        request = task.request if is_a_delivery(task) else None
        if request is None or request.visibility_in_run:
            return function(*args, **kwargs)
        request.visibility_in_run = True
        try:
            result = function(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as exc:  # noqa: BLE001 - it is raised again, as what it means
            return task.on_run_failed(exc)
        finally:
            request.visibility_in_run = False
        if ends:
            publish_retries.set_deadline()
        return result

    return run


def turning_failures_of_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a `__call__` of the user's, which the tracer calls instead of `run`."""

    @wraps(call)
    def turned(task: Any, *args: Any, **kwargs: Any) -> Any:
        return turning_failures(task, partial(call, task))(*args, **kwargs)

    turned.turns_failures = True  # type: ignore[attr-defined]
    return turned


def is_a_delivery(task: Task) -> bool:
    """Whether it runs for a message from SQS, and not for a direct or eager call."""
    if task.request_stack is None:  # a task class used without an app, as in a unit test
        return False
    request = task.request
    return request.sqs is not None and not request.called_directly and not request.is_eager


def logging_errors(task: Any, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler of the user's that is called once the outcome is stored: its error decides nothing."""

    @wraps(handler)
    def handle(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except Exception:
            if not is_a_delivery(task):
                raise
            logger.exception("%s of task %s failed", handler.__name__, task.name)

    return handle


def is_raised_in(file: str, traceback: Any) -> bool:
    """Whether an exception of that traceback, Python's or billiard's, was raised by code of that file."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename == file


def retry_before(exc: BaseException | None) -> Retry | None:
    """The `Retry` that was being handled when the exception was raised, if any.

    A `VisibilityRetry` has the message come back; of any other the successor is published.
    """
    while exc is not None and not isinstance(exc, Retry):
        exc = exc.__context__
    return exc


def _prepare(task: Any, request: dict[str, Any]) -> None:
    """What Celery, and who comes after it, is to know of a run before it begins."""
    if task.name == CHORD_UNLOCK:
        publish_retries.set_deadline()
    if request.get("chord") and task.app.conf.worker_deduplicate_successful_tasks:
        # Celery would skip a run whose result is stored; but its chord may not have been told of that.
        request["delivery_info"] = {**(request.get("delivery_info") or {}), "redelivered": False}
    if _is_beyond_limit(task, request):
        # A run that takes its worker along leaves this behind, for the next worker to see.
        _store(task, request, {"pid": os.getpid(), "hostname": request.get("hostname")}, states.STARTED)


def _tell_release(task: Any, request: dict[str, Any], info: Any) -> None:
    """A run beyond the limit that was given back has ended: take the trace of its beginning back."""
    released = info is not None and info.state == states.REJECTED and info.retval.requeue
    if released and _is_beyond_limit(task, request):
        _store(task, request, info.retval, states.RETRY)


def _is_beyond_limit(task: Any, request: dict[str, Any]) -> bool:
    retries = request.get("retries") or 0
    limit = task.limit_of(Context(request)) if retries else None
    return limit is not None and retries > limit


def _store(task: Any, request: dict[str, Any], result: Any, state: str) -> None:
    context = Context(request)
    if context.ignore_result or task.ignore_result:
        return
    try:
        task.backend.store_result(request["id"], result, state, request=context)
    except Exception:
        logger.exception("state %s of task %s[%s] could not be stored", state, task.name, request["id"])


def _raised(retry: Retry, record: Callable[[], ExceptionInfo]) -> ExceptionInfo:
    """Call `record` while the exception is being handled, which it looks up for its traceback."""
    try:
        raise retry from retry.exc
    except Retry:
        return record()
