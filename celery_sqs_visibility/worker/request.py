"""Celery's request of a task whose message is from SQS: the end of the run settles the message.

Celery's main process keeps a `Request` for each message (celery/worker/request.py). Its `on_success` and
`execute_using_pool` are redefined by `create_request_cls`, so overriding them here would have no effect. The
other methods run on the main thread in prefork and solo, and in the pool's threads or greenlets elsewhere:
settling is safe in any thread, and does no I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final
from weakref import ref

from billiard.common import TERM_SIGNAME
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]  # in no stub
from celery import Task
from celery.exceptions import (
    Ignore,
    NotRegistered,
    Reject,
    Retry,
    TaskRevokedError,
    Terminated,
    WorkerLostError,
)
from celery.utils.log import get_logger
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.worker import state

from celery_sqs_visibility.contacts.pool import was_told_to_end
from celery_sqs_visibility.contacts.worker import CeleryRequest
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.endings import run_end_of
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Settlement, Why
from celery_sqs_visibility.delivery.event_log import fields_of, last_request
from celery_sqs_visibility.events import DeliveryEnded, Finished, Skipped, emit
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep
from celery_sqs_visibility.policy.retries import attempts_made, whole_seconds
from celery_sqs_visibility.task.chord_end import is_at_end
from celery_sqs_visibility.task.context import DeliveryContext, SQSDelivery
from celery_sqs_visibility.task.retries import RetryDecisions
from celery_sqs_visibility.task.tracing import is_raised_in
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker.worker_context import WorkerContext

logger = get_logger(__name__)

DELETE: Final = Delete()


class GivenBackError(TaskRevokedError):
    """The message was given back, in a shutdown, before its run began."""


class DeliveryRequest(CeleryRequest):
    """A request of a task with Celery's own behaviour. It settles its delivery, if it has one.

    Settling needs no event loop, which may be blocked (solo), or stopped while the pool is joined (threads).
    """

    #: Set in a subclass for each task of a worker: see `bound_tasks`.
    worker: ClassVar[WorkerContext] = WorkerContext()
    #: Whether the message is acknowledged when the run begins.
    is_early: ClassVar[bool] = False
    #: Whether the task has its own strategy, which collects messages and ignores their ETA.
    is_collected: ClassVar[bool] = False
    #: Whether the run is ended when its message is lost.
    ends_when_lost: ClassVar[bool] = False

    message: Message
    context: DeliveryContext

    delivery: Delivery | None = None
    _rejected_by_task = False
    _terminated_on_purpose = False
    _thread: int | None = None  # of its run, in a pool without processes

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **options)
        delivery: Delivery | None = getattr(message, "delivery", None)
        if delivery is None:
            return
        self.delivery = delivery
        delivery.carrier = weak = ref(self)
        last_request.append(weak)
        if self.is_early:
            delivery.acknowledged_early = True
        self._describe(delivery)
        if self.eta is not None:
            self._note_eta(delivery, self.eta.timestamp())
        if self.ends_when_lost:
            delivery.on_lost = self.end_lost_run

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Note that a pool runs the request or, in a pool without processes, is about to.

        Raises:
            GivenBackError: the message was given back while it waited in the pool, and must not run.
        """
        held = self.delivery is None or self.delivery.start()
        if not self.worker.has_processes:
            self._pass_on_lease()
            self._thread = threading.get_ident()
            if not held:
                state.task_ready(self)
                raise GivenBackError(self.id)
        super().on_accepted(pid, time_accepted)
        delivery = self.delivery
        # The message may have been lost after its dispatch to a process, when there was no run to end.
        if delivery is not None and self.ends_when_lost:
            receipt = delivery.handle  # read first: a newer one may arrive now
            if delivery.lost:
                self.end_lost_run(receipt)

    def revoked(self) -> bool:
        """Returns whether the request must not run: revoked, expired, or its task is paused."""
        waits = self.worker.waits_for_resume
        return self._is_revoked() or (waits is not None and waits(self))

    def _is_revoked(self) -> bool:
        """Returns whether it was revoked or has expired. After an error the message comes back."""
        if not (state.revoked or state.revoked_stamps or self.expires):
            return False  # Celery has nothing to check
        known = self.already_revoked
        try:
            revoked = bool(super().revoked())
        except Exception:  # noqa: BLE001 - the result backend's, for example
            self.log(logger.exception, "Task %s[%s] could not be called revoked, and comes back")
            self.come_back_later()
            state.task_ready(self)
            return True
        if revoked and not known:
            self.tell_skipped("it was revoked, or has expired")
        return revoked

    def ended(self) -> None:
        """Note that the run is over, however it ended. Called by the pool."""
        if self.delivery is not None and self.delivery.acknowledged_early:
            self.delivery.run_ended()

    def measure_run(self) -> None:
        """Emit the end of a run that was acknowledged early, once its outcome is known."""
        if self.delivery is not None and DeliveryEnded.is_wanted():
            emit(run_end_of(self.delivery, SYSTEM_CLOCK.monotonic()))

    def dispatch(self) -> bool:
        """Mark the message as running in a process. Returns `False` if it was given back or lost."""
        if self.delivery is not None and not self.delivery.dispatch():
            state.task_ready(self)
            return False
        self._pass_on_lease()
        return True

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002
        return_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Settle a run that ended with an exception."""
        exc = exception_of(exc_info)
        if self._was_killed_for_nothing(exc):
            state.task_ready(self)
            if not self.acknowledged:
                self.log(logger.warning, "Task %s[%s] comes back: its process was killed")
                self.settle(RELEASE)
            return None
        if could_not_publish_retry(exc_info) and self._has_attempts_left():
            self.log(logger.warning, "Task %s[%s] comes back: its retry could not be published")
            self._end_unreported()
            return None
        if isinstance(exc, NotRegistered) and not return_ok:
            # Its process was forked before the worker imported the task's module.
            self.log(
                logger.warning,
                "Task %s[%s] comes back: its process was forked before the task was registered",
            )
            self._end_unreported()
            return None
        self._rejected_by_task = isinstance(exc, Reject)
        if not (isinstance(exc, (Ignore, Retry)) or self._terminated_on_purpose):  # Celery calls `on_retry`
            self.note_outcome("failed")
        if isinstance(exc, MemoryError):  # Celery would end the worker, and leave the message unacknowledged
            if self.delivery is not None and not self.acknowledged:
                self.log(logger.warning, "Task %s[%s] comes back: it ran out of memory")
                self._end_unreported()
                return None
            wrapped: Any = copy(exc_info)
            wrapped.exception = UnpickleableExceptionWrapper.from_exception(exc)
            exc_info = wrapped
        with self._settled_if_it_raises():
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """Settle a run that ended with a `Retry`. A retry of an ordinary task is a message of its own."""
        self.note_outcome("retried")
        with self._settled_if_it_raises():
            super().on_retry(exc_info)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """Settle a run that exceeded its time limit."""
        with self._settled_if_it_raises():
            super().on_timeout(soft, timeout)

    def cancel(self, pool: Any, signal: Any = None, *args: Any, **options: Any) -> None:
        """End the run, as Celery does when the connection is lost; its message comes back.

        Green pools report a killed run as a success, so it is settled before. In prefork `on_failure` settles
        it, because the run may have ended already without our knowledge: then that end counts.
        """
        if not self._can_be_ended():
            return
        if not self.worker.has_processes:
            self.come_back_later()
        self.mark_cancelled()
        super().cancel(pool, signal, *args, **options)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the run because it was revoked; if it has not begun, when it begins."""
        self._terminated_on_purpose = True
        if self.time_start is not None:
            self.note_outcome("discarded")
        try:
            super().terminate(pool, signal)
        except NotImplementedError:  # its pool can't end runs: the run goes on
            self._terminated_on_purpose = False
            self.note_outcome(None)
            raise

    def end_lost_run(self, receipt: str) -> None:
        """End the run whose message was lost under that receipt, so that two workers don't run the task.

        A thread of the pump. The holder decides whether this, the run's own end or a newer receipt came
        first. No result is stored: the other worker's run will have one.
        """
        if self.time_start is None:  # it won't begin, or `on_accepted` will end it
            return
        if (delivery := self.delivery) is None or not self._can_be_ended():
            return
        if delivery.holder.settle(delivery, Lapse(), receipt):
            self.acknowledged = True
            self.worker.call_in_loop(self._kill_lost)

    @property
    def is_on_main_thread(self) -> bool:
        """Whether the run is on the thread of a solo pool, which is Celery's main thread."""
        return self._thread == threading.main_thread().ident and not self.worker.can_end_runs

    @property
    def publishes_chord(self) -> bool:
        """Whether the run may be publishing the body of its chord in this process (`task.chord_end`)."""
        return is_at_end(self._thread)

    def end_in_shutdown(self) -> None:
        """End the run, or abandon it if its pool can't end it. Nothing is settled or stored. Any thread.

        The message is handed back, or was deleted when the run began.
        """
        self.acknowledged = True
        if not self.worker.can_end_runs:
            self.worker.left.add(self._thread)
            return
        if not self.worker.has_processes:
            self.eventer = None  # a green pool reports a killed run as a success
        with self._logged_if_it_raises():
            self._kill("SIGKILL")

    def acknowledge(self) -> None:
        """Delete the message."""
        if (delivery := self.delivery) is None:
            super().acknowledge()
        elif not self.acknowledged:
            if Finished.is_wanted() and delivery.started:
                emit(Finished(delivery.facts))
            self.acknowledged = True
            delivery.settle(DELETE)

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """Release the message or give it up, according to the task's `Reject`.

        After a rejection by Celery itself it comes back later.
        """
        if self.delivery is None:
            super().reject(requeue)
        elif not self.acknowledged:
            if self._rejected_by_task and requeue:
                self.settle(RELEASE)
            elif (backoff := after_rejection(self.delivery, self.task)) is not None:
                self.settle(backoff)
            elif self._rejected_by_task:
                self.give_up("rejected by the task")
            else:
                self.come_back_later()  # not at once: it could kill one worker after the other
            self.send_event("task-rejected", requeue=requeue)

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's
        """Send an event, unless the worker sends only its own heartbeats."""
        groups = getattr(self.eventer, "groups", None)
        if not groups or "task" in groups:
            super().send_event(type, **fields)

    def settle(self, settlement: Settlement) -> None:
        """Settle the message. Celery considers it acknowledged from now on."""
        self.acknowledged = True
        if self.delivery is not None:
            self.delivery.settle(settlement)

    def tell_skipped(self, reason: str) -> None:
        """Emit that the task is skipped for good."""
        if self.delivery is not None:
            emit(Skipped(self.delivery.facts, reason))

    def note_outcome(self, outcome: str | None) -> None:
        """Note the outcome that metrics count if the message is deleted."""
        if self.delivery is not None:
            self.delivery.outcome = outcome

    def come_back_later(self) -> None:
        """Hide the message as after a failure without a chosen delay, unless it is settled."""
        if self.delivery is not None and not self.acknowledged:
            self.settle(self.delivery.after_an_error())

    def give_up(self, reason: str, **attributes: str) -> None:
        """Send the message to the dead-letter queue, if there is one, and delete it."""
        self.acknowledged = True
        self.message.give_up(reason, getattr(self.task, "when_exhausted", None), **attributes)

    @property
    def visibility_timeout(self) -> int | None:
        """The queue's visibility timeout in seconds; `None` without a delivery."""
        if (delivery := self.delivery) is None:
            return None
        return delivery.holder.options.for_queue(delivery.queue.name).visibility_timeout

    def put_off(self, seconds: float, why: Why = Why.RATE) -> bool:
        """Replace the message by a copy that waits in SQS. Returns `False` if that is not possible."""
        renew = self.message.renewal(SYSTEM_CLOCK.wall() + seconds, self._published_retries)
        if renew is None:
            return False
        self.settle(replace(renew, why=why))
        return True

    @property
    def _published_retries(self) -> int:
        """The attempts used up by earlier messages of the task."""
        return self.request_dict.get("retries") or 0

    @contextmanager
    def _settled_if_it_raises(self) -> Iterator[None]:
        """Let the message come back after an error of Celery's, which would leave it held for 12 hours."""
        try:
            yield
        except Exception:
            self.come_back_later()
            raise

    def _has_attempts_left(self) -> bool:
        """Whether a message whose retry could not be published has attempts left, by its receives."""
        if self.delivery is None:
            return False
        limit, receives = self.task.max_retries, self.delivery.facts.receive_count
        return (
            limit is None or attempts_made(receives, self.delivery.parkings, self._published_retries) < limit
        )

    def _was_killed_for_nothing(self, exc: BaseException) -> bool:
        """Whether the process was killed by `cancel`, together with the worker, or by mistake.

        Celery takes every `Terminated` of a run that it did not cancel for a revoked run's, and deletes the
        message.
        """
        if self.delivery is None:
            return False
        if self.already_cancelled:
            return isinstance(exc, (Terminated, WorkerLostError, SystemExit, KeyboardInterrupt))
        if self.already_revoked or self._terminated_on_purpose:
            return False
        return isinstance(exc, Terminated) or (was_told_to_end(exc) and self._ended_with_worker())

    def _ended_with_worker(self) -> bool:
        """Whether the process was told to end together with the worker, as by a signal to their group."""
        if not self.worker.is_ending:
            sleep(0.2)  # the worker's own signal may come a moment later
        return self.worker.is_ending and not self.acknowledged and not self._has_succeeded

    @cached_property
    def _has_succeeded(self) -> bool:
        """Whether the child was lost after it had stored its success (Celery 5.7)."""
        return self.success_was_stored()

    def _end_unreported(self) -> None:
        """Tell Celery that the run is over, without a result. The message comes back later."""
        state.task_ready(self)
        self.come_back_later()

    def _can_be_ended(self) -> bool:
        if not self.worker.can_end_runs:
            self.log(logger.warning, "Task %s[%s] cannot be ended: its pool has no way to")
        return self.worker.can_end_runs

    def _kill_lost(self) -> None:
        """Kill the run, unless it has ended: its process or greenlet may run another. Never raises."""
        if self not in state.active_requests or self.publishes_chord:
            return
        self.log(logger.warning, "Task %s[%s] is ended: its message is lost")
        with self._logged_if_it_raises():
            self._kill(TERM_SIGNAME)
            state.task_ready(self)
            self.send_event("task-cancelled")

    def _kill(self, signal_name: str) -> None:
        """Kill the run's process or greenlet, in a way that Celery does not take for the run's own end."""
        self.mark_cancelled()
        self.worker.kill(self.worker_pid, signal_name)

    @contextmanager
    def _logged_if_it_raises(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - it is logged
            self.log(logger.exception, "Task %s[%s] could not be ended")

    def log(self, log: Callable[..., object], sentence: str, *args: object, **facts: object) -> None:
        """Log a sentence about "Task %s[%s]", with the delivery and these facts in the record's `sqs`.

        Never raises.
        """
        with suppress(Exception):
            if self.delivery is None:
                extra = {"task": self.name, "task_id": self.id, **facts}
            else:
                extra = fields_of(self.delivery.facts, **facts)
            log(sentence, self.name, self.id, *args, extra={"sqs": extra}, stacklevel=2)

    def _pass_on_lease(self) -> None:
        """Give the task the key of its lease, before a pool with processes pickles the request."""
        if self.delivery is not None:
            self.request_dict["visibility_lease"] = self.delivery.lease_key

    def _describe(self, delivery: Delivery) -> None:
        """Put the facts of the delivery into the request, for the task in any process."""
        facts, request = delivery.facts, self.request_dict
        redrive = delivery.holder.redrive.peek(delivery.queue)
        sqs: SQSDelivery = {
            "queue": facts.queue,
            "message_id": facts.message_id,
            "receive_count": facts.receive_count,
            "first_receive_time": facts.first_received,
            "horizon": delivery.horizon,
            "max_receive_count": redrive.max_receive_count if redrive else None,
        }
        request["sqs"] = sqs
        retries = request.get("retries") or 0
        request["delivery_info"]["redelivered"] = redelivered = facts.receive_count - delivery.parkings > 1
        if redelivered:
            retries = self._retries_with_receives(delivery, retries)
        request["retries"] = retries
        if facts.attempt != retries + 1:
            delivery.facts = replace(facts, attempt=retries + 1)
        if redelivered and not delivery.kept_before:
            # Nothing more is known of a message that another process has received.
            self.log(
                logger.info,
                "Task %s[%s]: receive %d; the process that received it before has not finished it "
                "(lost, given back, or hidden for later)",
                facts.receive_count,
            )

    def _note_eta(self, delivery: Delivery, eta: float) -> None:
        """Tell the worker of the ETA, in seconds since the epoch; events, too, if no run has followed it."""
        if not self.request_dict["delivery_info"]["redelivered"]:
            delivery.facts = replace(delivery.facts, eta=eta)
        if self.worker.waiting is not None and not self.is_collected:
            self.worker.waiting.wait_for_eta(self)

    def _retries_with_receives(self, delivery: Delivery, published_retries: int) -> int:  # noqa: ARG002
        """The attempts before this one. For ordinary tasks receives don't count as attempts."""
        return published_retries


def after_rejection(delivery: Delivery, task: Any) -> Settlement | None:
    """The settlement of a rejected message by kombu's `backoff_policy`; `None` if that doesn't name its task.

    kombu leaves such a message in its queue, even if the policy has no delay for the attempt
    (kombu/transport/SQS/__init__.py: `QoS.reject`, `Channel.basic_reject`). Celery rejects the message of a
    failed task if `acks_on_failure_or_timeout` is off, and of a task that raises `Reject`. A `VisibilityTask`
    has the policy among its delays.
    """
    policy = delivery.holder.options.backoff_policy(delivery.queue.name, task.name)
    if policy is None or isinstance(task, RetryDecisions):
        return None
    delay = policy(delivery.facts.receive_count - delivery.parkings - 1, Reject())
    return Lapse() if delay is None else Hide(whole_seconds(delay))


def exception_of(exc_info: ExceptionInfo) -> BaseException:
    """The exception that the run raised; processes wrap it to send it."""
    exc: Any = exc_info.exception
    raised: BaseException = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
    return raised


def could_not_publish_retry(exc_info: ExceptionInfo) -> bool:
    """Whether Celery rejects a message because it could not publish the retry (celery/app/task.py: `retry`).

    A `Reject` that the task itself raises does not count: that is Celery's documented way to dead-letter.
    """
    exc = exception_of(exc_info)
    if not isinstance(exc, Reject):
        return False
    reject: Any = exc
    if reject.requeue or not isinstance(reject.reason, BaseException):
        return False
    return is_raised_in(Task.retry.__code__.co_filename, exc_info.tb)
