"""The request of a `VisibilityTask`: its failures hide the message.

What the child decided arrives as a `VisibilityRetry`, or as the failure of a last attempt; of lost runs only
the main process hears, and decides with the same methods of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.canvas import maybe_signature
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.worker import state
from kombu.utils.encoding import safe_repr, safe_str

from celery_sqs_visibility.delivery.model import Delivery, Hide, Lapse
from celery_sqs_visibility.events import Failed, emit
from celery_sqs_visibility.policy.attempts import attempts_made
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.fates import End, Fate, fate_of
from celery_sqs_visibility.policy.retry_delays import whole_seconds
from celery_sqs_visibility.task.retries import EVERY_EXCEPTION
from celery_sqs_visibility.task.tracing import VisibilityRetry
from celery_sqs_visibility.worker.request import DeliveryRequest, exception_of

logger = get_logger(__name__)

#: A child past its hard time limit is killed after its failure was reported: seconds to keep its message back
#: at the least, so that two runs cannot overlap.
KILLED_BY_THEN = 1

#: Receives beyond the last attempt at which a message is still run: a release counts as a receive, and what
#: was only released is not to fail without ever having run.
RELEASES_FORGIVEN = 3

#: The address of Celery's backend that sends results to their callers.
RPC = "rpc://"


class VisibilityRequest(DeliveryRequest):
    """A request of a `VisibilityTask`: its failures hide the message."""

    _failed_for_good = False

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """The child decided that it comes back: hide it, instead of deleting it as Celery does."""
        exc = exception_of(exc_info)
        if self.delivery is not None and isinstance(exc, VisibilityRetry):
            self._come_back(exc.delay, exc.excs)
        super().on_retry(exc_info)

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002
        return_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """It failed for good, as the child decided, or its run was lost, of which the child knows nothing."""
        exc = exception_of(exc_info)
        if self.delivery is not None and not self._is_celerys_own(exc):
            # An internal error is one of Celery's, at the last attempt, that nobody could record.
            decided = return_ok and not exc_info.internal
            if self.pool_has_processes and not decided and isinstance(exc, (SystemExit, KeyboardInterrupt)):
                exc_info = _lost_by(exc)
                exc = exception_of(exc_info)
            with self._settled_if_it_raises():
                if not decided and self._lost_run_comes_back(exc, exc_info):
                    return None
            with self._given_up_after(exc, exc_info):
                return super().on_failure(exc_info, send_failed_event, return_ok)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """A time limit has passed.

        In prefork a hard one has been told to `on_failure` already (billiard/pool.py: `on_hard_timeout`); in
        gevent this is all we hear of it.
        """
        if soft or self.delivery is None:
            super().on_timeout(soft, timeout)
            return
        logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
        try:
            raise TimeLimitExceeded(timeout)  # noqa: TRY301 - an ExceptionInfo is made of a raised one
        except TimeLimitExceeded as exc:
            einfo = ExceptionInfo()
            if not self.acknowledged:
                self.on_failure(einfo)
            if self._failed_for_good:
                self._tell_handlers(exc, einfo)

    def revoked(self) -> bool:
        """Whether not to run it: as any other, or because it was given up before, or kills its workers."""
        try:
            may_not = self._is_not_run()
        except Exception:
            # Raised from here it would cost the pool a slot.
            logger.exception("Task %s[%s] could not be failed, and comes back", self.name, self.id)
            self.come_back_later()
            may_not = True
        if may_not:
            state.task_ready(self)
        return may_not or super().revoked()

    def _describe(self, delivery: Delivery) -> None:
        super()._describe(delivery)
        published = self._request_dict.get("retries") or 0
        self._request_dict["retries"] = attempts_made(delivery.facts.receive_count, delivery.parks, published)

    def _is_celerys_own(self, exc: BaseException) -> bool:
        """Settlements that keep Celery's meaning, and runs that Celery itself cut off."""
        if isinstance(exc, (Retry, Ignore, Reject, Terminated)):
            return True
        cut_off = self._was_killed_for_nothing(exc) or self._already_revoked
        return cut_off or (
            isinstance(exc, WorkerLostError) and self._has_succeeded and not self._may_owe_chord
        )

    @cached_property
    def _has_succeeded(self) -> bool:
        """Whether the child was lost after it had stored its success (Celery 5.7)."""
        stored = getattr(self, "_success_was_stored", None)
        return bool(stored and stored())

    @property
    def _may_owe_chord(self) -> bool:
        """Whether a run whose success is stored may not have told its chord, or not published its body."""
        return bool(self._context.chord) and self._attempts_beyond() <= RELEASES_FORGIVEN

    @cached_property
    def _chord_claim_seconds(self) -> float:
        """How long a run that was lost may keep others from publishing the body of its chord.

        Celery 5.7 has a lease for that (celery/backends/redis.py: `on_chord_part_return`); who comes while it
        lasts does nothing, without a word.
        """
        lease = getattr(self.task.backend, "_chord_publish_claim_expires", None)
        if lease is None or not self._context.chord:
            return 0.0
        app: Any = self.app
        join = max(5, int((app.conf.result_chord_join_timeout or 5.0) * 2))
        return float(join + lease(join, maybe_signature(self._context.chord, app=app)))

    def _lost_run_comes_back(self, exc: BaseException, exc_info: ExceptionInfo) -> bool:
        """Hide the message of a run whose child is gone, and tell the world as the child would have."""
        task, context = self.task, self._context
        if self.acknowledged or self._fate_of_lost_run(exc) is not Fate.COME_BACK:
            return False
        delay = task.delay_after(context, exc)
        if delay is not None and isinstance(exc, TimeLimitExceeded):
            delay = max(delay, KILLED_BY_THEN)
        if self._chord_claim_seconds:
            delay = max(delay or 0.0, self._chord_claim_seconds)
        state.task_ready(self)
        self._come_back(delay, safe_repr(exc))
        if self.store_errors:
            task.backend.mark_as_retry(self.id, exc, exc_info.traceback, request=context)
        self.send_event("task-retried", exception=safe_repr(exc), traceback=safe_str(exc_info.traceback))
        reason = VisibilityRetry(None, exc, delay)
        task.request_stack.push(context)
        try:
            task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(task, request=context, reason=reason, einfo=exc_info)
        finally:
            task.request_stack.pop()
        logger.info("Task %s[%s] retry: %s", self.name, self.id, reason)
        return True

    def _fate_of_lost_run(self, exc: BaseException) -> Fate:
        if isinstance(exc, WorkerLostError) and self._has_succeeded:
            return Fate.COME_BACK  # only its chord is left to do
        last = self.task.is_last_attempt(self._context, self.task.limit_of(self._context))
        return fate_of(End.LOST, retried=self.task.comes_back(exc), last=last)

    def _come_back(self, delay: float | None, error: str) -> None:
        self._tell_failure(error, delay, last=False)
        self.settle(Lapse() if delay is None else Hide(whole_seconds(delay)))

    @contextmanager
    def _given_up_after(self, exc: BaseException, exc_info: ExceptionInfo) -> Iterator[None]:
        """Give the message up once the failure is stored; if it could not be, have the message come back."""
        self._failed_for_good = True
        self._tell_failure(safe_repr(exc), None, last=True)
        settled, self.acknowledged = self.acknowledged, True  # so that Celery does not delete it before
        try:
            yield
        except Exception:
            self.acknowledged = settled
            self.come_back_later()
            raise
        if not settled:
            last = self.task.is_last_attempt(self._context, self.task.limit_of(self._context))
            self.give_up(
                "failed at its last attempt" if last else "failed, and is not to be retried",
                exception=_described(exc),
                traceback=safe_str(exc_info.traceback),
                attempts=str(self._request_dict["retries"] + 1),
            )

    def _is_not_run(self) -> bool:
        """Settle a message that was given up before, has no attempts left or has to wait; whether it did."""
        if self.delivery is None or self.acknowledged:
            return False
        given_up = self.delivery.given_up
        stored = self._stored() if given_up or self._may_be_stored() else {}
        if given_up or self._is_failure_of(self.delivery, stored):
            error = stored.get("result")
            self.give_up(
                "was given up before",
                exception=_described(error) if isinstance(error, BaseException) else "",
                traceback=safe_str(stored.get("traceback") or ""),
            )
        elif stored.get("status") == states.STARTED and self._attempts_beyond() > RELEASES_FORGIVEN:
            self._fail_unrun()
        elif (seconds := self._claim_left(stored)) > 0:
            self.settle(Hide(whole_seconds(seconds)))
        else:
            return False
        return True

    def _fail_unrun(self) -> None:
        """Fail what has used up its attempts, the last of which began and could not tell of its end."""
        try:
            raise WorkerLostError("No attempts left: the runs before were lost, with their workers.")  # noqa: TRY301
        except WorkerLostError:
            self.on_failure(ExceptionInfo())

    def _attempts_beyond(self) -> int:
        """How many receives there were since that of the last attempt."""
        limit = self.task.limit_of(self._context)
        return 0 if limit is None else max(0, self._request_dict["retries"] - limit)

    def _may_be_stored(self) -> bool:
        """Whether the result backend is worth a question, which costs the main thread a moment."""
        task = self.task
        if not (self._delivery_info["redelivered"] and self.store_errors and task.backend.persistent):
            return False
        every = task.autoretry_for is EVERY_EXCEPTION and not task.dont_autoretry_for
        limit = task.limit_of(self._context)
        return self._attempts_beyond() > 0 or limit is None or not every or self._chord_claim_seconds > 0

    def _stored(self) -> Mapping[str, Any]:
        """What the result backend has of the task; empty where it tells nothing."""
        backend = self.task.backend
        if backend.as_uri() == RPC:  # to ask would make a queue, and only the caller has the result
            return {}
        try:
            return dict(backend.get_task_meta(self.id, cache=False))
        except Exception:  # noqa: BLE001 - no result backend, or none that answers: then nobody knows
            return {}

    @staticmethod
    def _is_failure_of(delivery: Delivery, stored: Mapping[str, Any]) -> bool:
        """Whether it is this message's failure for good that is stored.

        A message that was moved back from a dead-letter queue has the task id of one that failed before. In
        doubt it is run: a time that is not known decides nothing, and no clock is taken to be wrong.
        """
        done, first = _done_at(stored), delivery.facts.first_received
        if stored.get("status") != states.FAILURE or done is None or not first:
            return False
        return done > first

    def _claim_left(self, stored: Mapping[str, Any]) -> float:
        """Seconds for which a lost run may still keep others from publishing the body of its chord."""
        done = _done_at(stored)
        if not self._chord_claim_seconds or stored.get("status") != states.SUCCESS or done is None:
            return 0.0
        return done + self._chord_claim_seconds - SYSTEM_CLOCK.wall()

    def _tell_handlers(self, exc: Exception, einfo: ExceptionInfo) -> None:
        """Call the task's handlers for a run that was cut off, as Celery 5.7 does in `on_timeout`."""
        self.task.on_failure(exc, self.id, self.args, self.kwargs, einfo)
        self.task.after_return(states.FAILURE, exc, self.id, self.args, self.kwargs, einfo)

    def _tell_failure(self, error: str, delay: float | None, *, last: bool) -> None:
        if self.delivery is not None:
            attempt = self._request_dict["retries"] + 1
            emit(Failed(self.delivery.facts, attempt=attempt, error=error, delay=delay, last=last))


def _lost_by(exc: BaseException) -> ExceptionInfo:
    """A child's exit, which billiard 4.3 reports before it knows it lost. Celery stores none before 5.7."""
    try:
        raise WorkerLostError(f"Worker exited prematurely: {exc!r}.")  # noqa: TRY301
    except WorkerLostError:
        return ExceptionInfo()


def _described(exc: BaseException) -> str:
    """An exception's type and message, as at the end of a traceback."""
    if isinstance(exc, UnpickleableExceptionWrapper):
        module, name, message = exc.exc_module, exc.exc_cls_name, ", ".join(map(str, exc.exc_args))
    else:
        module, name = type(exc).__module__, type(exc).__qualname__
        try:
            message = str(exc)
        except Exception:  # noqa: BLE001 - a user's __str__
            message = safe_repr(exc)
    return f"{name if module == 'builtins' else f'{module}.{name}'}: {message}"


def _done_at(stored: Mapping[str, Any]) -> float | None:
    """When a stored outcome came to pass, in seconds since the epoch; `None` if that is not known.

    Celery's backends store UTC; those on SQL and MongoDB drop that word (celery/backends/database/models.py).
    """
    done = stored.get("date_done")
    if isinstance(done, str):
        try:
            done = datetime.fromisoformat(done.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(done, datetime):
        return None
    return (done if done.tzinfo else done.replace(tzinfo=timezone.utc)).timestamp()
