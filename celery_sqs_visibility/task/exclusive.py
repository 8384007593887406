"""Exclusive tasks: one run of a key at a time, none after it has succeeded. In the pool's child.

The worker's main process has named the key and its owner, the run, since it is the one that renews the lease
for as long as it extends the message. Here the key is acquired before Celery's tracer hears of the run, so
that a run that does not take place leaves no trace: no state, no result, no signal. And it is finished once
the tracer has done all that follows from a success. A crash before that has the task run again.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Reject

from celery_sqs_visibility.delivery.lease import Lease
from celery_sqs_visibility.delivery.lease_table import find_lease
from celery_sqs_visibility.errors import ExclusiveKeyError, StoreError, VisibilityLostError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.exclusive import CHECKPOINT_BYTES, key_of
from celery_sqs_visibility.stores.port import Acquired, ExclusiveStore, Processed, Processing, Renewal
from celery_sqs_visibility.task.context import is_delivery
from celery_sqs_visibility.transport.transport import Transport

if TYPE_CHECKING:
    from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = logging.getLogger(__name__)

#: (args, kwargs)
KEY_ARGUMENTS: Final = 2

#: A lease is for as long as the message is hidden, but for this long at the least.
SHORTEST_LEASE_SECONDS: Final = 1.0


class Ownership(TypedDict):
    """What the main process tells a run of its key.

    Attributes:
        key: its name in the store; empty if there is an error.
        owner: the name of this run there.
        error: why the arguments make no key.
    """

    key: str
    owner: str
    error: str


class NotRun(Reject):
    """A run that did not take place. It is pickled on its way to the worker's main process.

    Args:
        why: the state of the key, or the error of the store.
    """

    def __init__(self, why: Processing | Processed | str, requeue: bool = True) -> None:  # noqa: FBT001, FBT002
        super().__init__(cast("str", why), requeue)
        self.why = why


class ExclusiveRun:
    """A run that has its key.

    Attributes:
        checkpoint: the value that was saved last, by this run or one before it.
    """

    def __init__(self, store: ExclusiveStore, ownership: Ownership, lease: Lease | None) -> None:
        self._store = store
        self._key, self._owner = ownership["key"], ownership["owner"]
        self._lease = lease
        self.checkpoint: Any = None

    def begin(self, visibility_timeout: float) -> None:
        """Take the key for as long as the message is hidden; the main process prolongs both.

        Raises:
            NotRun: another run has it, or has succeeded, or the store does not say.
        """
        lease, until = self._lease, SYSTEM_CLOCK.monotonic() + visibility_timeout
        if lease is not None:
            until = lease.deadline
        outcome = self._store.acquire(self._key, self._owner, self._seconds(until))
        if not isinstance(outcome, Acquired):
            raise NotRun(outcome)
        self.checkpoint = outcome.checkpoint
        if lease is None:
            logger.warning("the lease of the key %r cannot be renewed: its run has no lease", self._key)
            return
        lease.holds_key = True  # the main process renews it after each extension from now on
        if lease.deadline > until:  # there was one since the key was acquired
            with suppress(StoreError):  # the next extension is followed by the next renewal
                self._store.renew([Renewal(self._key, self._owner, self._seconds(lease.deadline))])

    def save(self, value: Any) -> None:
        """See `Visibility.checkpoint`."""
        size = len(json.dumps(value))
        if size > CHECKPOINT_BYTES:
            raise ValueError(
                f"expected a checkpoint of at most {CHECKPOINT_BYTES} bytes as JSON, got {size}: save where "
                "the data is, and not the data"
            )
        if not self._store.save(self._key, self._owner, value):
            raise VisibilityLostError(f"the key {self._key!r} was lost: another worker may run the task")
        self.checkpoint = value

    def end(self, ttl: float, *, succeeded: bool) -> None:
        """The key is processed for `ttl` seconds, or free for the next attempt. Never raises."""
        if self._lease is not None:
            self._lease.holds_key = False
        try:
            if not succeeded:
                self._store.release(self._key, self._owner)
            elif not self._store.finish(self._key, self._owner, ttl):
                logger.warning(
                    "the key %r was lost before its run succeeded: another worker may run the task, too",
                    self._key,
                )
        except Exception as error:  # noqa: BLE001 - it is logged
            follows = "a duplicate may run again" if succeeded else "the key is free when its lease lapses"
            sentence = "the end of the run with the key %r was not noted, and %s: %s"
            logger.error(sentence, self._key, follows, error)  # noqa: TRY400 - the error's text says all

    @staticmethod
    def _seconds(until: float) -> float:
        return max(SHORTEST_LEASE_SECONDS, until - SYSTEM_CLOCK.monotonic())


def broker_context(app: Any) -> BrokerContext | None:
    """What this process knows of the app's broker, options and store included; `None` on any other broker."""
    with app.connection_for_read() as connection:
        return connection.transport.context if isinstance(connection.transport, Transport) else None


def store_of(app: Any) -> ExclusiveStore | None:
    """The store that the app's option `exclusive_store` names, if it names one. No request."""
    context = broker_context(app)
    return None if context is None else context.exclusive_store


def key_rule(cls: type, task: Any = None) -> Callable[[Any, Any], Any] | None:
    """What makes a key of (args, kwargs), of the attribute `exclusive`; `None` for the task's id, or no key.

    Raises:
        ValueError: it is neither True nor False, nor such a callable.
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
    """The key of a run. In the worker's main process, on its main thread in most pools.

    Raises:
        ExclusiveKeyError: there is none.
    """
    rule = key_rule(type(task), task)
    try:
        return key_of(task.name, task_id if rule is None else rule(args, kwargs))
    except ExclusiveKeyError:
        raise
    except Exception as error:
        raise ExclusiveKeyError(f"`exclusive` of task {task.name!r} failed: {error!r}") from error


def refuse_without_key(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the task's code: where its arguments made no key, the run fails, as with an error of its own."""

    @wraps(run, updated=())
    def keyed(*args: Any, **kwargs: Any) -> Any:
        ownership = task.request.visibility_exclusive if is_delivery(task) else None
        if ownership and ownership["error"]:
            raise ExclusiveKeyError(ownership["error"])
        return run(*args, **kwargs)

    return keyed


def trace_exclusively(task: Any, tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the tracer of an exclusive task: it is called if the run has its key."""

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
            traced = tracer(uuid, args, kwargs, {**request, "visibility_run": run})
            succeeded = traced.info is None
            return traced
        finally:
            run.end(ttl, succeeded=succeeded)

    return trace


def _begin(task: Any, ownership: Ownership, request: dict[str, Any]) -> tuple[ExclusiveRun, float]:
    context: Any = broker_context(task.app)  # the worker has looked at both before it started
    try:
        options = context.options
        run = ExclusiveRun(context.exclusive_store, ownership, find_lease(request.get("visibility_lease")))
        run.begin(options.for_queue(request["sqs"]["queue"]).visibility_timeout)
    except NotRun:
        raise
    except Exception as error:  # the message is to come back, whatever a store raises
        raise NotRun(str(error) if isinstance(error, StoreError) else repr(error)) from error
    return run, options.exclusive_ttl if task.exclusive_ttl is None else task.exclusive_ttl
