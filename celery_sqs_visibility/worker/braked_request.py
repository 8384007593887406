"""Request of a task with a brake: it waits while the brake is on, and reports how runs end."""

from __future__ import annotations

import sys
from typing import Any, Final

from billiard.einfo import ExceptionInfo
from celery.exceptions import Retry, Terminated
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_sqs_visibility.core.settlements import Why
from celery_sqs_visibility.policy.brake import MIN_PAUSE_SECONDS, Start
from celery_sqs_visibility.policy.eta import LEAD_SECONDS
from celery_sqs_visibility.task.exclusive import NotRun
from celery_sqs_visibility.task.retries import LOST_RUNS
from celery_sqs_visibility.worker.request import exception_of
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest

#: Failures that say nothing about the dependency, unless `brake_on` lists them.
SAYING_NOTHING: Final = (*LOST_RUNS, Terminated, NotRun)


class BrakedRequest(VisibilityRequest):
    """Mixed into the requests of tasks with `brake_on`."""

    #: The brake's permission to start, until its end is reported.
    brake_start: Start | None = None
    _failed_try = False

    @property
    def brake_name(self) -> str:
        """The name of the task's brake, which other tasks may share."""
        return self.task.brake or self.name

    def revoked(self) -> bool:
        """Returns whether the request must not run, or waits for its brake."""
        start, self.brake_start = self.brake_start, None  # Celery acknowledges a revoked request: no success
        revoked, self.brake_start = super().revoked(), start
        if revoked:
            self._tell_brake(None)
            return True
        return self.worker.brakes is not None and self.worker.brakes.wait(self)

    def begin(self, start: Start) -> None:
        """Let it start. If `start` is forgiven, a failure of the dependency does not count as an attempt.

        Only if a copy can replace the message, because each receive counts as an attempt.
        """
        self.brake_start = start
        forgiven = start.forgiven and self.message.renewal(0.0, self._published_retries) is not None
        if forgiven is not self.request_dict.get("visibility_try", False):
            self.request_dict["visibility_try"] = self.context.visibility_try = forgiven

    def dispatch(self) -> bool:
        """Start the run, and tell the brake if it can't start."""
        goes = super().dispatch()
        if not goes:
            self._tell_brake(None)
        return goes

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002
        return_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Tell the brake whether the dependency has failed."""
        exc = exception_of(exc_info)
        cause = exc.exc if isinstance(exc, Retry) else exc
        if is_of(cause, self.task.brake_on):
            self._failed_try = self.request_dict.get("visibility_try", False)
            self._tell_brake(True, repr(cause))
        else:
            self._tell_brake(None if isinstance(cause, SAYING_NOTHING) else False)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _may_return(self) -> bool:
        return self._failed_try or super()._may_return()

    def _come_back(self, delay: float | None, error: str) -> None:
        """Let the message of a failed try come back as a copy, with as many attempts as before."""
        wait = LEAD_SECONDS + max(delay or 0.0, MIN_PAUSE_SECONDS)
        if self._failed_try and self.put_off(wait, Why.BRAKE):
            self._emit_failure(error, wait, last=False)
        else:
            super()._come_back(delay, error)

    def acknowledge(self) -> None:
        """Report a success to the brake."""
        self._tell_brake(False)
        super().acknowledge()

    def _tell_brake(self, failed: bool | None, error: str = "") -> None:  # noqa: FBT001
        start, self.brake_start = self.brake_start, None
        if start is not None and self.worker.brakes is not None:
            self.worker.brakes.end(self.brake_name, start, failed, error)


def is_of(exc: BaseException | None, classes: tuple[type[BaseException], ...]) -> bool:
    """Whether `exc` is of one of these classes. The pool may have replaced one that can't be pickled."""
    cls: Any = type(exc)
    if isinstance(exc, UnpickleableExceptionWrapper):
        cls = getattr(sys.modules.get(exc.exc_module or ""), exc.exc_cls_name or "", None)
    return isinstance(cls, type) and issubclass(cls, classes)
