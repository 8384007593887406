"""The request of a task whose run takes too long, or shows no life: the main process fails it."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import states
from celery.exceptions import TimeLimitExceeded
from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.delivery.lease import UNWATCHED
from celery_sqs_visibility.delivery.model import Delivery, Inactivity
from celery_sqs_visibility.errors import InactivityError
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.worker.exceptions import exc_info_of
from celery_sqs_visibility.worker.request import KILL_SIGNAME, DeliveryRequest

logger = get_logger(__name__)


class OverdueRequest(DeliveryRequest):
    """A request of a `VisibilityTask`, whose run may have a time limit."""

    task: VisibilityTask[..., Any]
    _failed_for_good = False

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """A time limit has passed.

        In prefork `on_failure` was called before for a hard one (billiard/pool.py: `on_hard_timeout`); in
        gevent it was not.
        """
        if soft or self.delivery is None:
            super().on_timeout(soft, timeout)
            return
        if self._fail_run(TimeLimitExceeded(timeout)):
            # Celery's ERROR in `on_failure` does not name the task. A run that comes back has its own line.
            logger.warning(
                "Hard time limit (%ss) exceeded for %s[%s]",
                timeout,
                self.name,
                self.id,
                extra=self.log_extra(),
            )

    def _fail_run(self, exc: Exception) -> bool:
        """It has failed, as its child cannot report, unless it is settled; whether it has for good."""
        exc_info = exc_info_of(exc)
        if not self.acknowledged:
            self.on_failure(exc_info)
        if self._failed_for_good:  # as Celery 5.7 does in `on_timeout`
            self.task.on_failure(exc, self.id, self.args, self.kwargs, exc_info)
            self.task.after_return(states.FAILURE, exc, self.id, self.args, self.kwargs, exc_info)
        return self._failed_for_good


class WatchedRequest(OverdueRequest):
    """Mixed into the requests of tasks whose run has to show life."""

    def _describe(self, delivery: Delivery) -> None:
        super()._describe(delivery)
        delivery.inactivity = Inactivity(self.task.inactivity_timeout or 0, self.end_inactive_run)

    def end_inactive_run(self) -> None:
        """Its run has shown no life for too long: end it, where the pool can. The supervisor's thread.

        A run that cannot be ended hears of it at its next sign of life; its message is held until it ends.
        """
        if self.worker.can_end_runs:
            self.worker.call_in_loop(self._end_inactive_run)
        else:
            logger.warning(
                "Task %s[%s] has shown no life for %g s, and its pool has no way to end it: it is told at "
                "its next sign of life, and its message is held until it ends",
                self.name,
                self.id,
                self.task.inactivity_timeout,
                extra=self.log_extra(),
            )

    def _end_inactive_run(self) -> None:
        """The event loop's thread, where there is one. Never raises.

        A process is killed first, or it might store the success of a run that is reported as failed. A
        greenlet is killed last: its pool takes that for a success, of which nothing is left to settle then.
        """
        lease = None if self.delivery is None else self.delivery.current.lease
        if self not in state.active_requests or lease is None or lease.last_sign == UNWATCHED:
            return  # it has ended
        kill = partial(self._kill, KILL_SIGNAME)  # it may not heed another signal
        fail = partial(self._fail_run, InactivityError.after(self.task.inactivity_timeout or 0))
        with self._logged_if_it_raises():
            for step in (kill, fail) if self.worker.has_processes else (fail, kill):
                step()
