"""Exceptions of runs, as pools hand them to requests."""

from __future__ import annotations

from typing import Any, Final

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]  # in no stub
from celery import Task
from celery.exceptions import Reject, Terminated, WorkerLostError
from celery.utils.serialization import UnpickleableExceptionWrapper
from kombu.utils.encoding import safe_repr

from celery_sqs_visibility.task.tracing import is_raised_in

#: How a pool tells that the process of a run is gone.
PROCESS_GONE: Final = (Terminated, WorkerLostError, SystemExit, KeyboardInterrupt)

#: Where Celery publishes retries.
RETRY_FILE = Task.retry.__code__.co_filename


def exception_of(exc_info: ExceptionInfo) -> BaseException:
    """The exception that the run raised; processes wrap it to send it."""
    exc: Any = exc_info.exception
    raised: BaseException = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
    return raised


def exc_info_of(exc: BaseException) -> ExceptionInfo:
    """As if a run had raised it: an ExceptionInfo is made of a raised exception."""
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()


def could_not_publish_retry(exc_info: ExceptionInfo) -> bool:
    """Whether Celery rejects a message because it could not publish the retry (celery/app/task.py: `retry`).

    A task that raises such a `Reject` itself means it: that is Celery's documented way to dead-letter.
    """
    exc = exception_of(exc_info)
    if not isinstance(exc, Reject):
        return False
    reject: Any = exc
    if reject.requeue or not isinstance(reject.reason, BaseException):
        return False
    return is_raised_in(RETRY_FILE, exc_info.tb)


def described(exc: BaseException) -> str:
    """An exception's type and message, as at the end of a traceback."""
    if isinstance(exc, UnpickleableExceptionWrapper):
        module, name, message = exc.exc_module, exc.exc_cls_name, ", ".join(map(str, exc.exc_args or ()))
    else:
        module, name = type(exc).__module__, type(exc).__qualname__
        try:
            message = str(exc)
        except Exception:  # noqa: BLE001 - a user's __str__
            message = safe_repr(exc)
    return f"{name if module == 'builtins' else f'{module}.{name}'}: {message}"
