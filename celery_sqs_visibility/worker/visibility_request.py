"""Request of a `VisibilityTask`: its failures hide the message.

A pool's child makes the decision, which arrives as a `VisibilityRetry`, or as the failure of a last attempt.
Only the main process learns of runs that are lost, take too long or show no life. It decides about them with
the same methods of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Final, cast

from billiard.einfo import ExceptionInfo
from celery import Task, signals, states
from celery.canvas import maybe_signature
from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    NotRegistered,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.log import get_logger
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.worker import state
from kombu.utils.encoding import safe_repr, safe_str

from celery_sqs_visibility.contacts.app import chord_claim_of
from celery_sqs_visibility.core.delivery import Delivery, Inactivity
from celery_sqs_visibility.core.settlements import Hide, Lapse
from celery_sqs_visibility.delivery.lease_table import UNWATCHED
from celery_sqs_visibility.errors import InactivityError
from celery_sqs_visibility.events import Failed, emit
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.retries import (
    RELEASES_FORGIVEN,
    End,
    are_spent,
    attempts_made,
    comes_back_after,
    whole_seconds,
)
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.chord_end import count_once
from celery_sqs_visibility.task.failure_log import log_failed_attempt
from celery_sqs_visibility.task.retries import EVERY_EXCEPTION, VisibilityRetry
from celery_sqs_visibility.worker.request import DeliveryRequest, exception_of

logger = get_logger(__name__)

#: Ends of runs that are killed shortly before or after they are reported.
KILLED_AFTERWARDS: Final = (TimeLimitExceeded, InactivityError)

#: A run that is killed has ended after this time.
KILLED_WITHIN_SECONDS: Final = 1


class VisibilityRequest(DeliveryRequest):
    """A request of a `VisibilityTask`: its failures hide the message."""

    task: VisibilityTask[..., Any]
    _failed_for_good = False

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """Hide the message, as the child decided. Celery would delete it."""
        exc = exception_of(exc_info)
        if self.delivery is not None and isinstance(exc, VisibilityRetry):
            if not (self.acknowledged or self._may_return()):
                self._fail_last_receive(exc, exc_info)
                return
            # A task that only polls retries without an exception.
            self._come_back(exc.delay, cast("Any", exc).excs or str(exc))
        super().on_retry(exc_info)

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002
        return_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Settle a run that failed for good, as its child decided, or that was lost."""
        exc = exception_of(exc_info)
        if self.delivery is None or self._is_celerys_own(exc):
            return super().on_failure(exc_info, send_failed_event, return_ok)
        # An internal error is one that Celery raised at the last attempt and could not record.
        decided = return_ok and not exc_info.internal
        if self.worker.has_processes and not decided and isinstance(exc, (SystemExit, KeyboardInterrupt)):
            # billiard 4.3 reports a child's exit before it reports the loss; Celery stores none before 5.7.
            exc_info = exc_info_of(WorkerLostError(f"Worker exited prematurely: {exc!r}."))
            exc = exception_of(exc_info)
        with self._settled_if_it_raises():
            if not decided and self._lost_run_comes_back(exc, exc_info):
                return None
        with self._given_up_after(exc, exc_info):
            if not decided:
                count_once(self.task, self.context)
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """Settle a run that exceeded its time limit.

        For a hard limit `on_failure` was called before in prefork (billiard/pool.py: `on_hard_timeout`), but
        not in gevent.
        """
        if soft or self.delivery is None:
            super().on_timeout(soft, timeout)
            return
        if self._fail_run(TimeLimitExceeded(timeout)):
            # Celery's ERROR in `on_failure` does not name the task. A run that is retried has a line of its
            # own.
            self.log(logger.warning, "Task %s[%s] exceeded its hard time limit (%ss)", timeout)

    def revoked(self) -> bool:
        """Returns whether it must not run: revoked, given up before, or out of attempts. Never raises."""
        if self.delivery is None or self.delivery.facts.receive_count == 1:  # nothing is known of it yet
            return super().revoked()
        try:
            settled = self._is_settled_unrun()
        except Exception:  # noqa: BLE001 - it is logged
            self.log(logger.exception, "Task %s[%s] could not be failed, and comes back")
            self.come_back_later()
            settled = True
        if settled:
            state.task_ready(self)
        return settled or super().revoked()

    def _retries_with_receives(self, delivery: Delivery, published_retries: int) -> int:
        return attempts_made(delivery.facts.receive_count, delivery.parkings, published_retries)

    def _is_celerys_own(self, exc: BaseException) -> bool:
        """Whether the end keeps Celery's meaning, or Celery itself ended the run."""
        if isinstance(exc, (Retry, Ignore, Reject, Terminated)):
            return True
        if self._was_killed_for_nothing(exc) or self.already_revoked:
            return True
        if not (isinstance(exc, WorkerLostError) and self._has_succeeded):
            return False
        # Its success is stored, but its chord may not have been told, or the body not published.
        return not self.context.chord or self._attempts_beyond_last > RELEASES_FORGIVEN

    @cached_property
    def _chord_claim_seconds(self) -> float:
        return chord_claim_seconds(self.task, self.context.chord)

    def _lost_run_comes_back(self, exc: Any, exc_info: ExceptionInfo) -> bool:
        """Hide the message of a lost run and report the retry, as its child would. `False`: it is final."""
        task, context = self.task, self.context
        # After the task's success only its chord remains to be done.
        only_chord = isinstance(exc, WorkerLostError) and self._has_succeeded
        comes_back = comes_back_after(End.LOST, retried=task.comes_back(exc), last=self._is_last_attempt)
        if self.acknowledged or not (only_chord or comes_back or task.is_forgiven(context, exc)):
            return False
        delay = task.delay_after(context, exc)
        if delay is not None and isinstance(exc, KILLED_AFTERWARDS):
            # The message stays hidden at least this long, so that two runs can't overlap.
            delay = max(delay, KILLED_WITHIN_SECONDS)
        if self._chord_claim_seconds:
            delay = max(delay or 0.0, self._chord_claim_seconds)
        state.task_ready(self)
        try:
            if self.store_errors and not self._is_lost:
                task.backend.mark_as_retry(self.id, exc, exc_info.traceback, request=context)
        finally:  # last: the next run may be over at once
            self._come_back(delay, safe_repr(exc))
        self.send_event("task-retried", exception=safe_repr(exc), traceback=safe_str(exc_info.traceback))
        reason = VisibilityRetry(None, exc, delay)
        log_failed_attempt(task, context, reason, exc)
        with self._as_in_run():
            signals.task_retry.send(task, request=context, reason=reason, einfo=exc_info)
            task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
        return True

    @contextmanager
    def _as_in_run(self) -> Iterator[None]:
        """Set `self.request` for the task's handlers, and log their errors, as in the run."""
        self.context.called_directly = False
        self.task.request_stack.push(self.context)
        try:
            yield
        finally:
            self.task.request_stack.pop()

    def _may_return(self) -> bool:
        """Whether the message may come back, by its latest receive, which the child can't know."""
        return self.delivery is not None and self.delivery.may_return

    @property
    def _is_lost(self) -> bool:
        """Whether another worker may have the message, and may have stored how the task ended."""
        delivery = self.delivery
        return delivery is not None and delivery.lost_by(SYSTEM_CLOCK.monotonic())

    def _come_back(self, delay: float | None, error: str) -> None:
        self._emit_failure(error, delay, last=False)
        self.settle(Lapse() if delay is None else Hide(whole_seconds(delay)))

    @contextmanager
    def _given_up_after(self, exc: BaseException, exc_info: ExceptionInfo) -> Iterator[None]:
        """Give the message up once the failure is stored. If storing fails, let the message come back."""
        self._failed_for_good = True
        self._emit_failure(safe_repr(exc), None, last=True)
        settled, self.acknowledged = self.acknowledged, True  # otherwise Celery would delete it first
        try:
            yield
        except Exception:
            self.acknowledged = settled
            self.come_back_later()
            raise
        if not settled:
            self.give_up(
                "failed at its last attempt" if self._is_last_attempt else "failed, and is not to be retried",
                exception=described(exc),
                traceback=safe_str(exc_info.traceback),
                attempts=str(self._attempt),
            )

    def _fail_last_receive(self, retry: VisibilityRetry, exc_info: ExceptionInfo) -> None:
        """Fail a run whose message was received again for the last time, which its child can't know.

        If it were hidden, SQS would move it at the next receive, without a reason.
        """
        exc: Any = retry.exc
        if exc is None:
            exc = MaxRetriesExceededError(f"Can't retry {self.name}[{self.id}]")
        self._fail_run(exc, exc_info.traceback)

    def _fail_run(self, exc: Exception, traceback: str | None = None) -> bool:
        """Fail a run whose child can't report, unless it is settled. Returns whether it failed for good."""
        exc_info = exc_info_of(exc)
        exc_info.traceback = traceback or exc_info.traceback
        if not self.acknowledged:
            self.on_failure(exc_info)
        if self._failed_for_good:  # as Celery 5.7 does in `on_timeout`
            with self._as_in_run():
                self.task.on_failure(exc, self.id, self.args, self.kwargs, exc_info)
                self.task.after_return(states.FAILURE, exc, self.id, self.args, self.kwargs, exc_info)
        return self._failed_for_good

    def _is_settled_unrun(self) -> bool:
        """Settle a message that was given up before, has no attempts left or has to wait.

        Returns whether it was settled.
        """
        delivery = self.delivery
        if delivery is None or self.acknowledged:
            return False
        given_up = delivery.given_up
        if not (given_up or self._may_be_stored()):
            return False
        stored = StoredResult.read(self.task, self.id)
        if given_up or stored.is_failure_of(delivery):
            self.give_up(
                "was given up before",
                exception=described(stored.error) if stored.error is not None else "",
                traceback=safe_str(stored.traceback),
            )
        elif stored.status == states.STARTED and are_spent(self._attempt - 1, self._limit):
            if self._may_run_still():
                return False
            self._fail_spent()
        elif (seconds := self._chord_claim_left(stored)) > 0:
            self.settle(Hide(whole_seconds(seconds)))
        else:
            return False
        return True

    def _may_run_still(self) -> bool:
        """Whether the run of its last attempt may still go on elsewhere, despite its receives."""
        return False

    def _fail_spent(self) -> None:
        """Fail a message whose last attempt began and did not report an end."""
        lost = WorkerLostError("No attempts left: the runs before were lost, with their workers.")
        self.on_failure(exc_info_of(lost))

    @property
    def _attempt(self) -> int:
        attempt: int = self.request_dict["retries"] + 1
        return attempt

    @property
    def _limit(self) -> int | None:
        return self.task.limit_of(self.context)

    @property
    def _is_last_attempt(self) -> bool:
        may_return = self.delivery is None or self.delivery.may_return
        return not may_return or self.task.is_last_attempt(self.context, self._limit)

    @property
    def _attempts_beyond_last(self) -> int:
        """The number of receives since that of the last attempt."""
        limit = self._limit
        return 0 if limit is None else max(0, self._attempt - 1 - limit)

    def _may_be_stored(self) -> bool:
        """Whether the result backend may know more than this process."""
        task = self.task
        if not (
            self.request_dict["delivery_info"]["redelivered"]
            and self.store_errors
            and task.backend.persistent
        ):
            return False
        if self.message.is_broadcast:
            return False  # other workers run it, too, and store under the same task id
        retries_all = task.autoretry_for is EVERY_EXCEPTION and not task.dont_autoretry_for
        endless = self._limit is None
        return not retries_all or endless or self._attempts_beyond_last > 0 or self._chord_claim_seconds > 0

    def _chord_claim_left(self, stored: StoredResult) -> float:
        """Seconds for which a lost run may still keep others from publishing the body of its chord."""
        if stored.status != states.SUCCESS or stored.done_at is None or not self._chord_claim_seconds:
            return 0.0
        return stored.done_at + self._chord_claim_seconds - SYSTEM_CLOCK.wall()

    def _emit_failure(self, error: str, delay: float | None, *, last: bool) -> None:
        if self.delivery is not None:
            emit(Failed(self.delivery.facts, attempt=self._attempt, error=error, delay=delay, last=last))


class WatchedRequest(VisibilityRequest):
    """Mixed into the requests of tasks with an `inactivity_timeout`."""

    def _describe(self, delivery: Delivery) -> None:
        super()._describe(delivery)
        delivery.inactivity = Inactivity(self.task.inactivity_timeout or 0, self.end_inactive_run)

    def end_inactive_run(self) -> None:
        """End a run that was silent for too long, if the pool can end runs. The supervisor's thread.

        A run that can't be ended learns of it at its next sign of life. Its message is held until it ends.
        """
        if self.worker.can_end_runs:
            self.worker.call_in_loop(self._end_inactive_run)
        else:
            self.log(
                logger.warning,
                "Task %s[%s] has shown no life for %g s, and its pool has no way to end it: it is told at "
                "its next sign of life, and its message is held until it ends",
                self.task.inactivity_timeout,
            )

    def _end_inactive_run(self) -> None:
        """Kill the run and report its failure. The event loop's thread, if there is one. Never raises.

        A process is killed first, or it might store the success of a run that is reported as failed. A
        greenlet is killed last: its pool reports a success, which then finds the message settled.
        """
        lease = None if self.delivery is None else self.delivery.lease
        if self not in state.active_requests or lease is None or lease.last_sign == UNWATCHED:
            return  # it has ended
        kill = partial(self._kill, "SIGKILL")  # it may ignore other signals
        fail = partial(self._fail_run, InactivityError.after(self.task.inactivity_timeout or 0))
        with self._logged_if_it_raises():
            for step in (kill, fail) if self.worker.has_processes else (fail, kill):
                step()


class StoredResult:
    """A task's stored state; attributes are empty if it is unknown.

    Attributes:
        status: one of `celery.states`, or `None`.
        error: the exception of a failure.
        traceback: of a failure.
        done_at: when the outcome was stored, in seconds since the epoch.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self.status: str | None = meta.get("status")
        result = meta.get("result")
        self.error = result if isinstance(result, BaseException) else None
        self.traceback = meta.get("traceback") or ""
        self.done_at = _seconds(meta.get("date_done"))

    @classmethod
    def read(cls, task: Task[Any, Any], task_id: str) -> StoredResult:
        """Ask the task's result backend, which blocks the calling thread for a moment. Never raises."""
        backend = task.backend
        if backend.as_uri() == "rpc://":  # asking would create a queue, and only the caller has the result
            return cls({})
        try:
            return cls(backend.get_task_meta(task_id, cache=False))
        except Exception:  # noqa: BLE001 - no result backend, or none that answers
            return cls({})

    def is_failure_of(self, delivery: Delivery) -> bool:
        """Returns whether this delivery's message is the one that failed for good.

        A message that was moved to or from a dead-letter queue has the task id of one that failed before. If
        the time is unknown, it runs. It also runs if a worker of kombu's SQS transport did not know its task,
        which Celery stores as a failure (celery/worker/consumer/consumer.py: `on_unknown_task`).
        """
        first = 0.0 if delivery.moved_from else delivery.facts.first_received
        if self.status != states.FAILURE or self.done_at is None or not first:
            return False
        if isinstance(self.error, NotRegistered):
            return False
        return self.done_at > first


def exc_info_of(exc: BaseException) -> ExceptionInfo:
    """An ExceptionInfo as if a run had raised the exception."""
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()


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


def chord_claim_seconds(task: Task[Any, Any], chord: Any) -> float:
    """Seconds for which a lost run may keep others from publishing the body of its chord.

    Celery 5.7 keeps a claim on that (celery/backends/redis.py: `on_chord_part_return`): while it lasts, a
    second run does nothing, and does not say so.
    """
    if not chord:
        return 0.0
    if (expires := chord_claim_of(task.backend)) is None:
        return 0.0
    join_timeout = max(5, int((task.app.conf.result_chord_join_timeout or 5.0) * 2))
    return float(join_timeout + expires(join_timeout, maybe_signature(chord, app=task.app)))


def _seconds(done: Any) -> float | None:
    """A `date_done` in seconds since the epoch; `None` if it is unknown.

    Celery's backends store UTC; SQL and MongoDB drop the zone (celery/backends/database/models.py).
    """
    if isinstance(done, str):
        try:
            done = datetime.fromisoformat(done)
        except ValueError:
            return None
    if not isinstance(done, datetime):
        return None
    return (done if done.tzinfo else done.replace(tzinfo=UTC)).timestamp()
