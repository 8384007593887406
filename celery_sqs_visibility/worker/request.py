"""The fate of a task becomes the fate of its delivery.

Celery's main process keeps a `Request` for each message (celery/worker/request.py). Of its methods
`on_success` and `execute_using_pool` are redefined for every task by `create_request_cls`, so that overriding
them here would do nothing; all others are ours to refine. They run on the main thread in prefork and solo, in
the pool's threads or greenlets elsewhere: settling is safe from any, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from billiard.common import TERM_SIGNAME
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import Task
from celery.concurrency.base import BasePool
from celery.exceptions import Reject, TaskRevokedError, Terminated, WorkerLostError
from celery.platforms import signals
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request

from celery_sqs_visibility.delivery.lease_table import lease_table
from celery_sqs_visibility.delivery.model import Delete, Delivery, Lapse, Release, Settlement
from celery_sqs_visibility.events import Finished, emit, log_safely
from celery_sqs_visibility.policy.attempts import attempts_made
from celery_sqs_visibility.task.tracing import is_raised_in
from celery_sqs_visibility.transport.message import Message

logger = get_logger(__name__)

#: Where Celery publishes retries.
RETRY_FILE = Task.retry.__code__.co_filename

#: How a pool tells that the process of a run is gone.
PROCESS_GONE = (Terminated, WorkerLostError, SystemExit, KeyboardInterrupt)


class GivenBackError(TaskRevokedError):
    """A message was given back, in a shutdown, before its run began."""


class DeliveryRequest(Request):
    """A request whose message came from SQS: for every task, with stock behaviour.

    Acknowledging goes straight to the settler and not through the event loop, which may be blocked (solo), or
    stopped while the pool is being joined (threads).
    """

    #: The worker's pool, and whether it runs tasks in processes; told by the worker's bootstep.
    pool: Any = None
    pool_has_processes = False
    #: The event loop that reads how runs ended, where the pool has processes; told likewise.
    hub: Any = None

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **options)
        delivery: Delivery | None = getattr(message, "delivery", None)
        self.delivery = None if delivery is None else delivery.current
        self._rejected_on_purpose = False
        self._terminated_on_purpose = False
        if self.delivery is not None:
            self.delivery.acknowledged_early = not self.task.acks_late
            self._describe(self.delivery)
            if self._on_lost == "terminate":
                self.delivery.on_lost = self.end_lost_run

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A pool runs it, or is about to, where it has no processes.

        Raises:
            GivenBackError: it was given back while it waited in the pool, which this keeps from running it.
        """
        held = self.delivery is None or self.delivery.start()
        self._tell_lease()
        if not held and not self.pool_has_processes:
            state.task_ready(self)
            raise GivenBackError(self.id)
        super().on_accepted(pid, time_accepted)

    def revoked(self) -> bool:
        """Whether it may not run: it was revoked, or has expired."""
        try:
            return bool(super().revoked())
        except Exception:
            # Of the result backend's, for one. Raised from here it would cost the pool a slot.
            logger.exception("Task %s[%s] could not be called revoked, and comes back", self.name, self.id)
            self.come_back_later()
            state.task_ready(self)
            return True

    def ended(self) -> None:
        """The run is over, told by the pool, however it ended."""
        if self.delivery is not None and self.delivery.acknowledged_early:
            self.delivery.ran()

    def dispatch(self) -> bool:
        """A pool with processes takes it, and cannot be kept from running it; whether it may have it.

        Called right before, so that what was given back, or lost, while it waited is not run here too.
        """
        if self.delivery is None or self.delivery.dispatch():
            self._tell_lease()
            return True
        state.task_ready(self)
        return False

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002
        return_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """It ended with an exception."""
        exc = exception_of(exc_info)
        if self._was_killed_for_nothing(exc):
            self._come_back_killed()
            return None
        if _could_not_publish_retry(exc_info) and self._may_be_tried_again():
            logger.warning("Task %s[%s] comes back: its retry could not be published", self.name, self.id)
            state.task_ready(self)
            self.come_back_later()
            return None
        self._rejected_on_purpose = isinstance(exc, Reject)
        with self._settled_if_it_raises():
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def _may_be_tried_again(self) -> bool:
        """Whether a message whose retry could not be published has attempts left, by its receives."""
        if self.delivery is None:
            return False
        limit, facts = self.task.max_retries, self.delivery.facts
        published = self._request_dict.get("retries") or 0
        return limit is None or attempts_made(facts.receive_count, self.delivery.parks, published) < limit

    def _was_killed_for_nothing(self, exc: BaseException) -> bool:
        """Whether its process was killed by `cancel`, or in the belief that it ran something else.

        Celery takes every `Terminated` for a revoked run, if it was not cancelled, and deletes the message.
        """
        if self.delivery is None:
            return False
        if self._already_cancelled:
            return isinstance(exc, PROCESS_GONE)
        return isinstance(exc, Terminated) and not (self._already_revoked or self._terminated_on_purpose)

    def _come_back_killed(self) -> None:
        state.task_ready(self)
        if not self.acknowledged:
            logger.warning("Task %s[%s] comes back: its process was killed", self.name, self.id)
            self.settle(Release())

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """It ended with a `Retry`."""
        with self._settled_if_it_raises():
            super().on_retry(exc_info)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """A time limit has passed."""
        with self._settled_if_it_raises():
            super().on_timeout(soft, timeout)

    def cancel(self, pool: Any, signal: Any = None, **options: Any) -> None:
        """End the run, as Celery does in a cold shutdown or without a connection; its message comes back.

        Where there are no processes that is settled first: green pools call the end of a run that they killed
        a success. A process may have ended the run already, unheard of, as in a soft shutdown, during which
        Celery does not listen: then that end counts. Otherwise `on_failure` has the message come back, and
        knows why, though Celery itself marks the run as cancelled last.
        """
        if self._cannot_be_ended(pool):
            return
        if not self.pool_has_processes:
            self.come_back_later()
        self._already_cancelled = True
        super().cancel(pool, signal, **options)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the run because it was revoked, now or when it begins."""
        self._terminated_on_purpose = True
        super().terminate(pool, signal)

    def end_lost_run(self, lost: Delivery) -> None:
        """That delivery is lost, and the task is not to run beside another worker's: end it.

        The heartbeat's thread. The ledger decides which was first, this or the run's own end, or whether the
        message has come back here. Nothing is stored of it: what becomes of the task the other run will tell.
        """
        if self.time_start is None:  # it does not run, and will not be begun
            return
        if self._cannot_be_ended(self.pool) or not lost.holder.settle(lost, Lapse()):
            return
        self.acknowledged = True
        self._where_ends_are_heard(self._end)

    def _cannot_be_ended(self, pool: Any) -> bool:
        if can_end_runs(pool):
            return False
        logger.warning("Task %s[%s] cannot be ended: its pool has no way to", self.name, self.id)
        return True

    def _where_ends_are_heard(self, act: Callable[[], object]) -> None:
        """Do that on the thread that hears how runs end in processes, and sends them others.

        There is none where there are no processes, and once a shutdown has begun none is sent any more.
        """
        seats = lease_table()
        if self.hub is None or seats is None or state.should_stop is not None or state.should_terminate:
            act()
        else:
            self.hub.call_soon(act)
            seats.wake()  # the loop of Celery 5.5 and 5.6 does not wake for that

    def _end(self) -> None:
        """Kill the run, unless it has ended: its process or greenlet may run another. Never raises."""
        if self not in state.active_requests:
            return
        log_safely(logger.warning, "Task %s[%s] is ended: its message is lost", self.name, self.id)
        self._already_cancelled = True
        try:
            self.pool.terminate_job(self.worker_pid, signals.signum(TERM_SIGNAME))
            state.task_ready(self)
            self.send_event("task-cancelled")
        except Exception:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, "Task %s[%s] could not be ended", self.name, self.id)

    @property
    def _on_lost(self) -> str:
        on_lost: str | None = getattr(self.task, "on_lost", None)
        return on_lost or str(self.message.channel.queue_consumer.options.on_lost)

    @contextmanager
    def _settled_if_it_raises(self) -> Iterator[None]:
        """What Celery leaves unacknowledged, for an error of its own, would be extended for 12 hours."""
        try:
            yield
        except Exception:
            self.come_back_later()
            raise

    def acknowledge(self) -> None:
        """Done: delete the message."""
        if self.delivery is None:
            super().acknowledge()
        elif not self.acknowledged:
            if self.delivery.current.started:
                emit(Finished(self.delivery.facts))
            self.settle(Delete())

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """As the task's `Reject` says: give it back at once, or give it up. Otherwise it comes back later."""
        if self.delivery is None:
            super().reject(requeue)
        elif not self.acknowledged:
            if not self._rejected_on_purpose:
                # Not at once: what kills its worker would do so without a pause.
                self.come_back_later()
            elif requeue:
                self.settle(Release())
            else:
                self.give_up("rejected by the task")
            self.send_event("task-rejected", requeue=requeue)

    def settle(self, settlement: Settlement) -> None:
        """Do that with the message; from now on it is acknowledged, whatever Celery thinks of it."""
        self.acknowledged = True
        if self.delivery is not None:
            self.delivery.settle(settlement)

    def come_back_later(self) -> None:
        """An error about which the task says nothing: hide the message, unless it is settled already."""
        if self.delivery is not None and not self.acknowledged:
            self.settle(self.delivery.after_an_error())

    def give_up(self, reason: str, **attributes: str) -> None:
        """To the dead letters, if there are any, then deleted."""
        self.acknowledged = True
        self.message.give_up(reason, getattr(self.task, "on_exhausted", None), **attributes)

    @property
    def visibility_timeout(self) -> int:
        """The one in force, in seconds."""
        timeout: int = self.message.channel.queue_consumer.options.visibility_timeout
        return timeout

    def put_off(self, eta: float) -> bool:
        """Have it wait in SQS until then, as a copy that keeps its attempts; whether it may.

        Args:
            eta: seconds since the epoch.
        """
        renew = self.message.renewal(eta, self._request_dict.get("retries") or 0)
        if renew is None:
            return False
        self.settle(renew)
        return True

    def _tell_lease(self) -> None:
        """Give the task the key to its lease, before a pool with processes pickles the request."""
        if self.delivery is not None:
            self._request_dict["visibility_lease"] = self.delivery.lease_key

    def _describe(self, delivery: Delivery) -> None:
        """Tell the task, in whatever process it will run, which delivery it is."""
        facts = delivery.facts
        redrive = self.message.channel.queue_consumer.redrive.peek(delivery.queue)
        self._delivery_info["redelivered"] = facts.receive_count - delivery.parks > 1
        self._request_dict["sqs"] = {
            "queue": facts.queue,
            "message_id": facts.message_id,
            "receive_count": facts.receive_count,
            "first_receive_time": facts.first_received,
            "horizon": delivery.horizon,  # on the monotonic clock, which the machine's processes share
            "max_receive_count": redrive.max_receive_count if redrive else None,
        }


def can_end_runs(pool: Any) -> bool:
    """Whether a pool has a way to end a run: threads have none, and the solo pool."""
    return getattr(pool.terminate_job, "__func__", None) is not BasePool.terminate_job


def _could_not_publish_retry(exc_info: ExceptionInfo) -> bool:
    """Whether Celery rejects a message since it could not publish the retry (celery/app/task.py: `retry`).

    A task may raise such a `Reject` itself, with an exception for its reason, and means it: that is Celery's
    documented way to dead-letter a message.
    """
    exc = exception_of(exc_info)
    if not isinstance(exc, Reject) or exc.requeue or not isinstance(exc.reason, BaseException):
        return False
    return is_raised_in(RETRY_FILE, exc_info.tb)


def exception_of(exc_info: ExceptionInfo) -> BaseException:
    """What the run raised, out of whatever it travelled in."""
    exc = exc_info.exception
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
