"""Exclusive tasks: one run of a key at a time, and none after a success. In the pool's child.

The worker's main process chooses the key and its owner, the run, because it renews the lease along with the
message. The key is acquired here before Celery's tracer sees the run, so that a run that does not take place
leaves no state, result or signal. The key is finished after the tracer has done everything that follows a
success: after an earlier crash the task runs again.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, cast

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Reject

from celery_sqs_visibility.delivery.lease_table import Lease, find_lease, lease_table_of
from celery_sqs_visibility.errors import (
    ExclusiveKeyError,
    StoreError,
    StoreUnavailableError,
    VisibilityLostError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.exclusive import CHECKPOINT_BYTES, TTL_SECONDS, key_of
from celery_sqs_visibility.policy.retries import are_spent
from celery_sqs_visibility.stores.port import Acquired, ExclusiveStore, Processed, Processing, Renewal
from celery_sqs_visibility.task.context import DeliveryContext, is_delivery
from celery_sqs_visibility.transport.transport import Transport

if TYPE_CHECKING:
    from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = logging.getLogger(__name__)

#: (args, kwargs)
KEY_ARGUMENTS: Final = 2

#: The shortest lease. Usually a lease lasts as long as the message is hidden.
MIN_LEASE_SECONDS: Final = 1.0


class Ownership(TypedDict):
    """The key of a run, as the main process passes it on.

    Attributes:
        key: its name in the store; empty if there is an error.
        owner: the name of this run in the store.
        error: why no key can be made of the arguments.
        published_retries: the attempts used up by earlier messages.
        spent: whether the receives leave no attempts, and the result backend says that a run began and did
            not end. The key tells whether that run is over.
    """

    key: str
    owner: str
    error: str
    published_retries: int
    spent: bool


@dataclass(frozen=True, slots=True)
class Spent:
    """The key was free: the earlier runs were lost, and no attempts are left."""


class Unanswered(NamedTuple):
    """The store did not answer a request made at the monotonic instant `since`."""

    error: str
    since: float


class NotRun(Reject):
    """A run that did not take place. `why` is the state of the key, or the store's error. Pickled."""

    def __init__(self, why: Processing | Processed | Spent | Unanswered | str, requeue: bool = True) -> None:  # noqa: FBT001, FBT002
        super().__init__(cast("str", why), requeue)
        self.why = why


class ExclusiveRun:
    """A run that has its key.

    Attributes:
        checkpoint: the value that this or an earlier run saved last.
        retries: number of earlier attempts of the message, without receives that waited for the key.
        runs: how many of these had the key in a row, right before this run.
    """

    def __init__(self, store: ExclusiveStore, ownership: Ownership, lease: Lease | None) -> None:
        self._store = store
        self._key, self._owner = ownership["key"], ownership["owner"]
        self._lease = lease
        self.checkpoint: Any = None
        self.retries = self.runs = 0

    def begin(self, visibility_timeout: float, retries: int) -> None:
        """Acquire the key for as long as the message is hidden; the main process renews it.

        Args:
            visibility_timeout: of a run without a lease.
            retries: the greatest possible number of earlier attempts.

        Raises:
            NotRun: another run has the key or has succeeded, or the store does not answer.
        """
        lease, until = self._lease, SYSTEM_CLOCK.monotonic() + visibility_timeout
        if lease is not None:
            until = lease.deadline
        outcome = self._store.acquire(self._key, self._owner, self._seconds(until), retries)
        if not isinstance(outcome, Acquired):
            raise NotRun(outcome)
        self.checkpoint, self.runs = outcome.checkpoint, outcome.runs
        self.retries = min(retries, outcome.retries)
        if lease is None:
            logger.warning("the lease of the key %r cannot be renewed: its run has no lease", self._key)
            return
        lease.retries = self.retries
        lease.holds_key = True  # from now on the main process renews the key after each extension
        if lease.deadline > until:  # the message was extended after the key was acquired
            with suppress(StoreError):  # the next extension renews it
                self._store.renew([Renewal(self._key, self._owner, self._seconds(lease.deadline))])

    def save(self, value: Any) -> None:
        size = len(json.dumps(value))
        if size > CHECKPOINT_BYTES:
            raise ValueError(
                f"expected a checkpoint of at most {CHECKPOINT_BYTES} bytes as JSON, got {size}: save where "
                "the data is, and not the data"
            )
        if not self._changed(partial(self._store.save, self._key, self._owner, value)):
            raise VisibilityLostError(f"the key {self._key!r} was lost: another worker may run the task")
        self.checkpoint = value

    def end(self, ttl: float, *, succeeded: bool) -> None:
        """Mark the key as processed for `ttl` seconds, or free it for the next attempt. Never raises."""
        if self._lease is not None:
            self._lease.holds_key = False
        try:
            if not succeeded:
                self._store.release(self._key, self._owner)
            elif not self._changed(partial(self._store.finish, self._key, self._owner, ttl)):
                logger.warning(
                    "the key %r was lost before its run succeeded: another worker may run the task, too",
                    self._key,
                )
        except Exception as error:  # noqa: BLE001 - it is logged
            follows = "a duplicate may run again" if succeeded else "the key is free when its lease lapses"
            sentence = "the end of the run with the key %r was not noted, and %s: %s"
            logger.error(sentence, self._key, follows, error)  # noqa: TRY400 - the error's text says all

    def _changed(self, change: Callable[[], bool]) -> bool:
        """Change the key's record. If the store has lost the record, create it again first."""
        if change():
            return True
        until = 0.0 if self._lease is None else self._lease.deadline
        (kept,) = self._store.renew([Renewal(self._key, self._owner, self._seconds(until))])
        return kept and change()

    @staticmethod
    def _seconds(until: float) -> float:
        return max(MIN_LEASE_SECONDS, until - SYSTEM_CLOCK.monotonic())


def broker_context(app: Any) -> BrokerContext | None:
    """The context of the app's broker, with its options and store; `None` on any other broker."""
    with app.connection_for_read() as connection:
        return connection.transport.context if isinstance(connection.transport, Transport) else None


def key_rule(cls: type, task: Any = None) -> Callable[[Any, Any], Any] | None:
    """The function in `exclusive` that makes a key of (args, kwargs); `None` if `exclusive` is a bool.

    Raises:
        ValueError: `exclusive` is neither.
    """
    value = inspect.getattr_static(cls, "exclusive")
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__get__(task, cls)
    elif inspect.isfunction(value) and len(inspect.signature(value).parameters) > KEY_ARGUMENTS:
        value = partial(value, task)  # a method; a function given to the decorator takes no self
    if callable(value):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, bool):
        raise ValueError(f"expected exclusive to be True, False or a callable(args, kwargs), got {value!r}")  # noqa: TRY004
    return None


def exclusive_key(task: Any, task_id: str, args: Any, kwargs: Any) -> str:
    """Make the key of a run. In the worker's main process, on its main thread in most pools.

    Raises:
        ExclusiveKeyError: no key can be made of the arguments.
    """
    rule = key_rule(type(task), task)
    try:
        return key_of(task.name, task_id if rule is None else rule(args, kwargs))
    except ExclusiveKeyError:
        raise
    except Exception as error:
        raise ExclusiveKeyError(f"`exclusive` of task {task.name!r} failed: {error!r}") from error


def refuse_without_key(task: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the task's code. If its key could not be made, the run fails as by an error of its own."""
    ownership = task.request.visibility_exclusive if is_delivery(task) else None
    if ownership and ownership["error"]:
        raise ExclusiveKeyError(ownership["error"])
    return run(*args, **kwargs)


def trace_exclusively(task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the tracer of an exclusive task, so that it is called only once the run has its key."""

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
        ownership: Ownership | None = (request or {}).get("visibility_exclusive")
        if request is None or not ownership or ownership["error"]:
            return tracer(uuid, args, kwargs, request)
        try:
            run, ttl = _begin(task, ownership, request)
        except NotRun as outcome:
            return trace_ok_t(ExceptionInfo(), TraceInfo(states.REJECTED, outcome), 0.0, None)
        succeeded = False
        try:
            traced = tracer(uuid, args, kwargs, {**request, "retries": run.retries, "visibility_run": run})
            succeeded = traced.info is None
            return traced
        finally:
            run.end(ttl, succeeded=succeeded)

    return trace


def _heed_worker(store: ExclusiveStore, lease_key: Any) -> None:
    """Apply what the main process has learned about the store since it started this run.

    Raises:
        NotRun: the store did not answer another run.
    """
    table = lease_table_of(lease_key)
    if table is None:
        return
    if table.store_answers_since < math.inf:
        store.answered(table.store_answers_since)
    elif not store.error:
        raise NotRun("another run had no answer from the store; it is not asked again until it answers")


def _begin(task: Any, ownership: Ownership, request: dict[str, Any]) -> tuple[ExclusiveRun, float]:
    context: Any = broker_context(task.app)  # the worker checked both at its start
    since = SYSTEM_CLOCK.monotonic()
    try:
        _heed_worker(context.coordination_store, request.get("visibility_lease"))
        run = ExclusiveRun(context.coordination_store, ownership, find_lease(request.get("visibility_lease")))
        run.begin(context.options.for_queue(request["sqs"]["queue"]).visibility_timeout, request["retries"])
    except NotRun:
        raise
    except StoreUnavailableError as error:
        raise NotRun(Unanswered(str(error), since)) from error
    except Exception as error:  # the message comes back, whatever a store raises
        raise NotRun(str(error) if isinstance(error, StoreError) else repr(error)) from error
    if ownership["spent"] and are_spent(
        ownership["published_retries"] + run.runs, task.limit_of(DeliveryContext(request))
    ):
        run.end(0.0, succeeded=False)
        raise NotRun(Spent())
    return run, TTL_SECONDS if task.exclusive_ttl is None else task.exclusive_ttl
