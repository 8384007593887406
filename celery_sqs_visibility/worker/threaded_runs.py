"""A run in a pool without processes: of threads, or of greenlets."""

from __future__ import annotations

from typing import Any, Final
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.worker import state

from celery_sqs_visibility.worker.request import DeliveryRequest, GivenBackError


class ThreadedRun:
    """A run in a pool without processes, which reports each of its ends to the right callback.

    The pool would lose a run that raises out of Celery's tracer, and pass one that ended with a BaseException
    to the callback for successes, which cannot take it (celery/concurrency/base.py: `apply_target`); nor does
    it heed what a callback raises, for lack of memory for one. Its message would never be settled, and be
    extended for 12 hours. A run that is lost all the same, with the pool's thread or before it, is gone: its
    message is given back then (see `delivery.forgotten`).

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
        """Run, if it may; what raises is returned as from a process pool."""
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
