"""`publish_batch`: many publications in few requests. `apublish`: publishing from asyncio."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from celery import Celery
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject, Retry

from celery_sqs_visibility.delivery.publish.blocks import Batch, NewSender
from celery_sqs_visibility.errors import PublishError
from celery_sqs_visibility.task.retries import VisibilityRetry
from celery_sqs_visibility.transport.transport import Transport

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Publications of `apublish` in progress at the same time; others wait. They share requests.
THREADS: Final = 16

#: How many task ids a log line names.
LOGGED_IDS: Final = 10

NOT_OPENED: Final = (
    "publish_batch(app) was called and its block never opened, so each message was sent by itself: write "
    "'with publish_batch(app):' around what publishes"
)

NOT_DECORATED: Final = (
    "publish_batch(app) cannot decorate {!r}: its body runs after the call has returned, outside the block. "
    "Remove the decorator, and write 'with publish_batch(app):' in the body"
)


def publish_batch(app: Celery[Any]) -> PublishBlock:
    """Send what is published inside in batches, ten messages or 1 MiB a request, several at a time.

    Sending begins at once, and ends before the block does. The block covers what goes to the app's broker;
    another thread or a greenlet takes part with `with batch.joined():`. On any other broker the block changes
    nothing. Transient failures are retried for up to 30 seconds.

    After an exception in the block, what was published before is still sent. Unsent messages are logged and
    added to the exception as a note; if the exception is no failure (see `_hides_failures`), `PublishError`
    replaces it. An exception while the end of the block waits, such as a second Ctrl-C's, is raised at once,
    with a note of how much was not sent.

    Args:
        app: the Celery app whose broker it is about.

    Raises:
        PublishError: some messages could not be sent; the others were.
    """
    return PublishBlock(app)


async def apublish(signature: Signature[Any], **options: Any) -> Any:
    """Publish a signature, a chain, a group or a chord, as its `apply_async(**options)` does.

    Returns when SQS has the message, without blocking the event loop. Concurrent publications share requests,
    and take part in a block of `publish_batch` around them.

    If it is cancelled before it began nothing is sent; otherwise it is completed.

    Returns:
        What `apply_async` returns: an `AsyncResult`, or a `GroupResult`.

    Raises:
        Exception: as `apply_async` does.
    """
    import asyncio  # noqa: PLC0415 - the caller has it, others need it not

    publish = partial(copy_context().run, signature.apply_async, **options)
    return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), publish)


@lru_cache(maxsize=1)
def _threads(_pid: int) -> ThreadPoolExecutor:
    """The threads of this process, for which the interpreter's exit waits. A forked child has its own."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="sqs-apublish")


class PublishBlock(AbstractContextManager[Batch]):
    """A block of `publish_batch`, for a `with` statement, or as a decorator that opens one for each call."""

    def __init__(self, app: Celery[Any]) -> None:
        self._is_used = False
        self._block = _block(app)

    def __enter__(self) -> Batch:
        self._is_used = True
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Open a block for each call of the function.

        Raises:
            TypeError: it is a coroutine function or a generator, whose body runs after the call.
        """
        self._is_used = True
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_of_kind(function) for is_of_kind in kinds):
            raise TypeError(NOT_DECORATED.format(function))
        return self._block(function)

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(NOT_OPENED, RuntimeWarning, stacklevel=2)  # as of a coroutine that nobody awaits


@contextmanager
def _block(app: Celery[Any]) -> Iterator[Batch]:
    batch = Batch(lambda: _broker_of(app))
    try:
        with batch.joined():
            yield batch
    except BaseException as error:
        if (unsent := _close(batch)) is not None:
            if _hides_failures(error):
                raise unsent from error
            _note(error, "messages published before an exception in publish_batch were not sent", str(unsent))
        raise
    if (unsent := _close(batch)) is not None:
        raise unsent


def _broker_of(app: Celery[Any]) -> NewSender | None:
    """The app's broker, for publications; `None` if it isn't SQS."""
    with app.connection_for_write() as connection:
        transport = connection.transport
        return transport.context.new_sender if isinstance(transport, Transport) else None


def _hides_failures(error: BaseException) -> bool:
    """Returns whether the exception is not a failure of the task, so that unsent messages would be lost.

    Celery deletes the message of a task that ends by `Ignore` (`self.replace()` raises it), `Reject` or a
    published `Retry`. A message that comes back publishes everything again. Closing a generator early raises
    nothing.
    """
    if isinstance(error, VisibilityRetry) or getattr(error, "requeue", False):  # `Reject.requeue`
        return False
    return isinstance(error, (Ignore, Reject, Retry, GeneratorExit))


def _close(batch: Batch) -> PublishError | None:
    """Wait until everything is sent. If an exception ends the wait, add a note of what was not sent to it."""
    try:
        return batch.close()
    except BaseException as interruption:
        if (unsent := batch.unsent()) is not None:
            ids = ", ".join(str(task_id) for task_id, _ in unsent.failures[:LOGGED_IDS])
            more = len(unsent.failures) - LOGGED_IDS
            _note(
                interruption,
                "publish_batch was interrupted while it was sending",
                f"{len(unsent.failures)} of {unsent.published} messages were not sent yet: {ids}"
                f"{f' and {more} more' if more > 0 else ''}",
            )
        raise


def _note(error: BaseException, event: str, unsent: str) -> None:
    """Log what was not sent, and add a note of it to the exception."""
    logger.error("%s: %s", event, unsent)
    error.add_note(unsent)
