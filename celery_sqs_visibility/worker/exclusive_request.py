"""Request of an exclusive task: finds its key, and settles the message if the run could not take place."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import Delete, Forward, Hide, Why
from celery_sqs_visibility.delivery.lease_table import lease_table
from celery_sqs_visibility.errors import ExclusiveKeyError, OptionError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.exclusive import (
    STORE_RETRY_SECONDS,
    message_of,
    owner_of,
    seconds_to_wait,
    store_retry_seconds,
)
from celery_sqs_visibility.stores.port import Processed, Processing
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.exclusive import NotRun, Ownership, Spent, Unanswered, exclusive_key
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.key_leases import KeyLease, KeyLeases
from celery_sqs_visibility.worker.request import exception_of
from celery_sqs_visibility.worker.visibility_request import (
    KILLED_AFTERWARDS,
    KILLED_WITHIN_SECONDS,
    VisibilityRequest,
)

if TYPE_CHECKING:
    from celery_sqs_visibility.stores.guarded import GuardedStore

logger = get_logger(__name__)


class ExclusiveRequest(VisibilityRequest):
    """Mixed into the requests of exclusive tasks."""

    _key_lease: KeyLease | None = None
    #: The attempts used up by earlier messages of the task.
    _retries_before = 0
    #: Whether, by its receives and the result backend, no attempts are left: see `Ownership`.
    _seems_spent = False
    #: Seconds until the key of a run whose child can't release it is released, once its state is stored.
    _key_delay: float | None = None

    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,  # noqa: FBT001, FBT002
        return_ok: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Settle a run that ended with an exception, or that could not begin."""
        lease = None if self.delivery is None else self.delivery.lease
        if lease is not None and (retries := lease.retries) is not None:
            # The store of the key knows how many attempts came before: some receives were none.
            self.request_dict["retries"] = self.context.retries = retries
        exc = exception_of(exc_info)
        if self.delivery is None or not isinstance(exc, NotRun):
            if not return_ok:  # otherwise the child has released the key
                self._key_delay = KILLED_WITHIN_SECONDS / 2 if isinstance(exc, KILLED_AFTERWARDS) else 0.0
            try:
                return super().on_failure(exc_info, send_failed_event, return_ok)
            finally:
                self._release_lost_key()
        state.task_ready(self)
        with self._settled_if_it_raises():
            self._settle_unrun(exc.why)
        return None

    def dispatch(self) -> bool:
        """Let the message wait while the store does not answer, without using a process."""
        if not (error := self._store_error):
            return super().dispatch()
        state.task_ready(self)
        self._settle_unrun(error)
        return False

    def release_key(self, delay: float) -> None:
        """Release the key of a run that has ended, or will have ended after that many seconds."""
        if self._key_lease is not None and self.worker.key_leases is not None:
            self.worker.key_leases.release(self._key_lease, delay)

    def _come_back(self, delay: float | None, error: str) -> None:
        self._release_lost_key()  # before the message, whose next run needs it
        super()._come_back(delay, error)

    def _release_lost_key(self) -> None:
        """Release the key of a lost run, whose state is stored: a duplicate with its task id may start."""
        if self._key_delay is not None:
            self.release_key(self._key_delay)
            self._key_delay = None

    @property
    def is_killed_before_its_key_is_free(self) -> bool:
        """Whether a shutdown kills the run before it releases the key. Threads and greenlets may go on."""
        return self.worker.has_processes

    def end_in_shutdown(self) -> None:
        """End the run in a shutdown. The key of a killed process is free at once."""
        super().end_in_shutdown()
        if self.is_killed_before_its_key_is_free:
            self.release_key(0.0)

    def cancel(self, pool: Any, signal: Any = None, *args: Any, **options: Any) -> None:
        """End the run, as Celery does when the connection is lost."""
        super().cancel(pool, signal, *args, **options)
        if self.already_cancelled:  # otherwise its pool can't end it
            self.release_key(KILLED_WITHIN_SECONDS)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the run because it was revoked; if it has not begun, when it begins."""
        super().terminate(pool, signal)
        if self.time_start is not None:
            self.release_key(KILLED_WITHIN_SECONDS)

    def _kill(self, signal_name: str) -> None:
        super()._kill(signal_name)
        self.release_key(KILLED_WITHIN_SECONDS)

    def _describe(self, delivery: Delivery) -> None:
        self._retries_before = self._published_retries
        super()._describe(delivery)

    def _may_run_still(self) -> bool:
        """Whether there are keys: a run that gets its key knows that the run before it is over."""
        self._seems_spent = self.worker.key_leases is not None
        return self._seems_spent

    def _pass_on_lease(self) -> None:
        super()._pass_on_lease()
        if self.worker.key_leases is not None and self.delivery is not None:
            self.request_dict["visibility_exclusive"] = self._ownership

    @property
    def _store_error(self) -> str:
        """Why the key can't be acquired, as far as is known; empty if it can, or without a key."""
        if self.worker.key_leases is None or self.delivery is None:
            return ""
        error = self.worker.key_leases.store.error
        return error if error and not self._ownership["error"] else ""

    @cached_property
    def _ownership(self) -> Ownership:
        """The key, and the name of this run. Calls the user's code; its error becomes the run's error."""
        ownership: Ownership = {
            "key": "",
            "owner": "",
            "error": "",
            "published_retries": self._retries_before,
            "spent": self._seems_spent,
        }
        run_id = self.id
        if self.delivery is not None and self.message.is_broadcast:  # all copies have the task's id
            run_id = f"{self.id}@{self.delivery.queue.name}"
        try:
            key = exclusive_key(self.task, run_id, self.args, self.kwargs)
        except ExclusiveKeyError as error:
            return {**ownership, "error": str(error)}
        owner = owner_of(self._message_id, uuid.uuid4().hex)
        if self.delivery is not None and self.worker.key_leases is not None:
            self._key_lease = KeyLease(key, owner, self.delivery)
            self.worker.key_leases.add(self._key_lease)
        return {**ownership, "key": key, "owner": owner}

    @property
    def _message_id(self) -> str:
        return "" if self.delivery is None else self.delivery.facts.message_id

    def _settle_unrun(self, why: Processing | Processed | Spent | Unanswered | str) -> None:
        key = self._ownership["key"]
        match why:
            case Processed():
                skipped = "Task %s[%s] skipped: its key %r was processed before"
                self.log(logger.info, skipped, key, key=key, outcome="skipped")
                self.tell_skipped(f"its key {key!r} was processed before")
                self._warn_of_canvas()
                # The only end that monitors accept for a run that began: they show REVOKED instead of STARTED
                # for ever, or SUCCESS if the task succeeded before (celery/events/state.py).
                self.send_event("task-revoked", terminated=False, signum=None, expired=False)
                self.note_outcome("skipped")
                self.settle(Delete())
            case Spent():
                self._fail_spent()
            case Processing(left, owner):
                seconds = seconds_to_wait(left)
                waits = "Task %s[%s] waits for %s s, and was not run: its key %r is processed elsewhere"
                self.log(logger.info, waits, seconds, key, key=key, outcome="waits", seconds=seconds)
                # An earlier run of the same message settles it and continues its attempts: no copy.
                own = message_of(owner) == self._message_id
                self._wait(seconds, None if own else self._copy(seconds))
            case Unanswered(error, since):
                if self.worker.key_leases is not None:
                    self.worker.key_leases.store.unanswered(error, since)
                self._wait_for_store(error)
            case error:
                self._wait_for_store(error)

    def _wait_for_store(self, error: str) -> None:
        copy, seconds = self._copy(STORE_RETRY_SECONDS), STORE_RETRY_SECONDS
        if copy is None and self.delivery is not None:
            seconds = store_retry_seconds(self.delivery.receives_left)
        unknown = "Task %s[%s] was not run, and comes back in %s s: its key cannot be acquired: %s"
        self.log(logger.error, unknown, seconds, error, key=self._ownership["key"])
        self._wait(seconds, copy)

    def _warn_of_canvas(self) -> None:
        """Warn of a skipped duplicate in a canvas, which does not continue. Its result stays as it is."""
        parts = [name for name in ("chord", "group", "chain") if self.context.get(name)]
        if parts and self.task.exclusive is not True:  # if the id is the key, the task itself has run
            stops = "Task %s[%s] was skipped, and the %s that it is part of does not go on from it"
            self.log(logger.warning, stops, parts[0])

    def _copy(self, seconds: int) -> Forward | None:
        """A copy that waits for that time, if possible: its receives don't count as attempts."""
        eta, hidden = SYSTEM_CLOCK.wall() + seconds, Hide(seconds, Why.KEY)
        return self.message.renewal(eta, self._published_retries, hidden)

    def _wait(self, seconds: int, copy: Forward | None) -> None:
        """Let the message come back, as a copy if there is one."""
        self.settle(copy or Hide(seconds, Why.KEY))


def open_store(context: BrokerContext) -> GuardedStore | None:
    """Open the coordination store, if the options name one. Makes no request.

    Raises:
        ImproperlyConfigured: it can't be opened.
    """
    try:
        return context.coordination_store
    except OptionError as error:
        raise shown_in_one_line(ImproperlyConfigured(str(error))) from None


def open_key_leases(context: BrokerContext, tasks: Iterable[Any]) -> KeyLeases | None:
    """Open the keys of a worker with exclusive tasks. The caller starts them. No request, no thread.

    Raises:
        ImproperlyConfigured: there is no store, or it can't be opened.
    """
    exclusive = [task for task in tasks if isinstance(task, VisibilityTask) and task.exclusive]
    if not exclusive:
        return None
    store = open_store(context)
    if store is None:
        sentence = (
            f"task {exclusive[0].name!r} is exclusive, and no store is named for its keys: set the transport "
            "option coordination_store to dynamodb://TABLE or redis://HOST"
        )
        raise shown_in_one_line(ImproperlyConfigured(sentence))
    if (leases := lease_table()) is not None:
        store.follow(leases.tell_of_store)  # so that the pool's processes need not find out by waiting
    return KeyLeases(store, context.pump)
