"""Tracing of a `VisibilityTask`'s run. In the pool's child, where the exception is.

Celery's tracer (celery/app/trace.py: `build_tracer`) runs a task and records its end. For messages from SQS
two things differ. An exception of the task's own code becomes a `VisibilityRetry` if the message comes back;
Celery's autoretry does not handle that. An error of Celery's outside the task's code (storing the result,
publishing the next step of a chain) is not a failure of the task: the message comes back, and no errback is
called.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.app import trace as celery_trace
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, Retry

from celery_sqs_visibility.contacts.pool import is_told_to_end
from celery_sqs_visibility.delivery.lease_table import UNWATCHED, find_lease
from celery_sqs_visibility.delivery.publish import retries
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.task import chord_end, outcomes, successors
from celery_sqs_visibility.task.context import CHORD_UNLOCK, DeliveryContext
from celery_sqs_visibility.task.failure_log import (
    exception_behind,
    forget_tracebacks,
    log_failed_attempt,
    traceback_of,
)
from celery_sqs_visibility.task.retries import VisibilityRetry, as_ours
from celery_sqs_visibility.task.spans import describe_span
from celery_sqs_visibility.task.stored_state import store_state
from celery_sqs_visibility.task.successors import Continuation
from celery_sqs_visibility.visibility import Visibility  # for tasks' own code, too, before a pool forks

logger = logging.getLogger(__name__)

#: The file of Celery's tracer.
TRACE_FILE = celery_trace.TraceInfo.handle_retry.__code__.co_filename


class DeliveryTrace(TraceInfo):
    """The record of a run that did not succeed, for the main process."""

    __slots__ = ("einfo", "raised")

    def handle_error_state(
        self,
        task: Any,
        req: Any,
        eager: bool = False,  # noqa: FBT001, FBT002
        call_errbacks: bool = True,  # noqa: FBT001, FBT002
    ) -> ExceptionInfo:
        """Record RETRY if the message comes back, otherwise FAILURE with the task's own exception."""
        self.raised, self.retval = self.retval, as_ours(self.retval)
        record = partial(super().handle_error_state, task, req, eager=eager)
        if self.state == states.FAILURE and self.retval is not req.visibility_final:
            retry = task.retry_after_error_outside(req, self.retval)
            if retry is not None:
                self.state, self.retval = states.RETRY, retry
                self.einfo = _raised(retry, lambda: record(call_errbacks=False))
                return self.einfo
            # If storing the task's own failure has failed, it is stored now.
            self.retval = req.visibility_final or self.retval
        if self.state == states.FAILURE:
            chord_end.count_once(task, req)
        self.einfo = record(call_errbacks=call_errbacks)
        return self.einfo

    def handle_retry(
        self,
        task: Any,
        req: Any,
        store_errors: bool = True,  # noqa: FBT001, FBT002
        **kwargs: Any,
    ) -> ExceptionInfo:
        """Do what Celery does, but log a WARNING with the traceback if an exception is behind the retry.

        Without one the task polls or is continued, and Celery's INFO line is enough. RETRY is stored once: a
        run whose successor was sent has stored it before. It is not stored by a run that has lost its
        message: another run may have stored how the task ended.
        """
        retry = self.retval
        stored = req.visibility_retry_stored and not isinstance(retry, VisibilityRetry)
        if stored or Visibility(req).lost:
            store_errors = False
        exc = exception_behind(retry)
        if exc is None or isinstance(retry, Continuation):
            return super().handle_retry(task, req, store_errors=store_errors, **kwargs)
        einfo = ExceptionInfo((type(retry), retry, sys.exc_info()[2]))
        if store_errors:
            task.backend.mark_as_retry(req.id, retry.exc, einfo.traceback, request=req)
        log_failed_attempt(task, req, retry, exc, traceback=traceback_of(exc))
        signals.task_retry.send(sender=task, request=req, reason=retry, einfo=einfo)
        task.on_retry(retry.exc, req.id, req.args, req.kwargs, einfo)
        return einfo


def trace_deliveries(task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the tracer that Celery built for a task: messages from SQS are traced by `DeliveryTrace`."""

    @cache
    def build_ours(hostname: str | None) -> Callable[..., Any]:
        # Looked up late, because error trackers replace it.
        return celery_trace.build_tracer(task.name, task, hostname=hostname, Info=DeliveryTrace, app=task.app)

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
        if request is None or not request.get("sqs"):
            return tracer(uuid, args, kwargs, request)
        try:
            _prepare(task, request)
            traced = build_ours(request.get("hostname"))(uuid, args, kwargs, request)
            if request.get("chord") and (traced[1] is None or traced[1].state == states.FAILURE):
                chord_end.note_counted(task, uuid)
        except MemoryError:
            raise
        except Exception as exc:
            retry = _retry_after(exc, task, DeliveryContext(request, args=args, kwargs=kwargs))
            if retry is None:
                raise
            logger.exception("Celery could not record how task %s[%s] ended; it comes back", task.name, uuid)
            einfo = _raised(retry, ExceptionInfo)
            forget_tracebacks(retry)
            return trace_ok_t(einfo, DeliveryTrace(states.RETRY, retry), 0.0, None)
        finally:
            retries.clear_deadline()
            if request.get("chord"):
                chord_end.end()
        result, info, seconds, shown = traced
        if info is None:
            return traced
        _store_release(task, request, info)
        forget_tracebacks(info.retval)
        forget_tracebacks(getattr(info, "raised", None))
        # If Celery itself failed, `result` is that error.
        return trace_ok_t(getattr(info, "einfo", result), info, seconds, shown)

    return trace


def decide_failures(
    task: Any, request: DeliveryContext, function: Callable[..., Any], args: Any, kwargs: Any, *, ends: bool
) -> Any:
    """Run a part of a task's own code; `outcomes.on_run_failed` decides about its exceptions.

    With `ends`, the task's own code is over when the part returns.
    """
    request.visibility_in_run = True
    if ends:
        describe_span(request)
    try:
        result = _own_end(task, function, args, kwargs)
    except Retry as retry:
        if type(retry) is Retry:
            raise
        raise _as_celerys(retry).with_traceback(retry.__traceback__) from retry.__cause__
    finally:
        request.visibility_in_run = False
        successors.end(request)
        if ends and task.inactivity_timeout is not None and (lease := find_lease(request.visibility_lease)):
            lease.last_sign = UNWATCHED  # from here on runs Celery's code, which shows no life
    if ends:
        retries.set_deadline()
        if request.chord:
            chord_end.begin()
            chord_end.count_once(task, request)
    return result


def _own_end(task: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a part of the task's code. Raises the task's decision, such as a `VisibilityRetry`."""
    try:
        try:
            return function(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as exc:
            if is_told_to_end():  # SIGTERM ended the run, and its cleanup failed
                raise SystemExit from exc
            return outcomes.on_run_failed(task, exc)
    except VisibilityRetry:
        raise
    except Retry as retry:
        outcomes.require_successor(task, retry)
        raise


def _as_celerys(retry: Retry) -> Retry:
    """A plain `Retry` that wraps ours: New Relic's agent ignores exceptions by the name of their class."""
    plain: Any = Retry(retry.message, retry.exc, retry.when)
    plain.visibility_retry = retry
    return plain  # type: ignore[no-any-return]


def is_raised_in(file: str, traceback: Any) -> bool:
    """Returns whether the traceback, Python's or billiard's, ends in code of that file."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename == file


def _retry_after(exc: Exception, task: Any, request: DeliveryContext) -> Retry | None:
    # The tracer itself raises Reject if it can't publish what follows an earlier result.
    if isinstance(exc, Reject) and not is_raised_in(TRACE_FILE, exc.__traceback__):
        return None
    retry: Retry | None = task.retry_after_error_outside(request, exc)
    return retry


def _prepare(task: Any, request: dict[str, Any]) -> None:
    """Record what others need to know if the worker dies or the run shows no life."""
    if task.inactivity_timeout is not None and (lease := find_lease(request.get("visibility_lease"))):
        lease.last_sign = SYSTEM_CLOCK.monotonic()
    if task.name == CHORD_UNLOCK:
        retries.set_deadline()
    if request.get("chord") and task.app.conf.worker_deduplicate_successful_tasks:
        # Celery would skip a run whose result is stored, but its chord may not have been told.
        request["delivery_info"] = {**(request.get("delivery_info") or {}), "redelivered": False}
    if request.get("retries") and task.is_beyond_limit(context := DeliveryContext(request)):
        # If the run kills its worker, the next worker sees this.
        run = {"pid": os.getpid(), "hostname": request.get("hostname")}
        store_state(task, context, run, states.STARTED)


def _store_release(task: Any, request: dict[str, Any], info: Any) -> None:
    """Replace the state STARTED after a run beyond the limit whose message was given back."""
    released = info.state == states.REJECTED and info.retval.requeue
    if released and task.is_beyond_limit(context := DeliveryContext(request)):
        store_state(task, context, info.retval, states.RETRY)


def _raised(retry: Retry, record: Callable[[], ExceptionInfo]) -> ExceptionInfo:
    """Call `record` while the exception is being handled, because it reads the traceback."""
    try:
        raise retry from retry.exc
    except Retry:
        return record()
