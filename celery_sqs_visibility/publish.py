"""`publish_batch`: many publications in few requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_sqs_visibility.delivery.publish.sender import PublishError
from celery_sqs_visibility.task.tracing import VisibilityRetry
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.publish_scope import Batch
from celery_sqs_visibility.transport.transport import Transport

logger = logging.getLogger(__name__)

#: How many task ids a log line spells out.
SPELT_OUT = 10


@contextmanager
def publish_batch(app: Any) -> Iterator[Batch]:
    """Send what is published inside in batches, ten messages or 1 MiB a request, several at a time.

    Sending begins at once, and leaving the block means sent. What is published is what reaches the app's
    broker inside the block; another thread or a greenlet takes part with `with batch.joined():`. On any other
    broker the block changes nothing.

    What fails for a reason that may pass is tried again for up to 30 seconds. An exception in the block goes
    on after what was published before it has been sent; that something could not be is then a note of
    it, and logged. An exception that ends the block without failing (see `_hides_failures`) does not go on
    where something could not be sent. An exception that comes while leaving the block waits, as a second
    Ctrl-C does, goes on at once, and tells how much was not sent.

    Args:
        app: the Celery app whose broker it is about.

    Raises:
        PublishError: some messages could not be sent; the others were.
    """
    batch = Batch(lambda: _context_of(app))
    try:
        with batch.joined():
            yield batch
    except BaseException as error:
        unsent = _close(batch)
        if unsent is not None:
            if _hides_failures(error):
                raise unsent from error
            _tell(error, "messages published before an exception in publish_batch were not sent", str(unsent))
        raise
    unsent = _close(batch)
    if unsent is not None:
        raise unsent


def _context_of(app: Any) -> BrokerContext | None:
    """What the app publishes to, if it is SQS by this package."""
    with app.connection_for_write() as connection:
        transport = connection.transport
        return transport.context if isinstance(transport, Transport) else None


def _hides_failures(error: BaseException) -> bool:
    """Whether the exception is no failure: nobody would do anything about messages that were not sent.

    Celery is done with the message of a task that ends by `Ignore` (`self.replace()` raises it), `Reject` or
    a `Retry` that was published. A message that comes back by itself keeps the delay that its task has asked
    for, and its next run publishes everything again. A generator that is closed early raises nothing.
    """
    if isinstance(error, VisibilityRetry) or getattr(error, "requeue", False):  # `Reject.requeue`
        return False
    return isinstance(error, (Ignore, Reject, Retry, GeneratorExit))


def _close(batch: Batch) -> PublishError | None:
    """Wait until everything is sent; what could not be.

    An exception that ends the wait goes on at once: a second Ctrl-C, a time limit.
    """
    try:
        return batch.close()
    except BaseException as interruption:
        unsent = batch.unsent()
        if unsent is not None:
            ids = ", ".join(str(task_id) for task_id, _ in unsent.failures[:SPELT_OUT])
            told = f"{len(unsent.failures)} of {unsent.published} messages were not sent yet: {ids}"
            more = len(unsent.failures) - SPELT_OUT
            told += f" and {more} more" if more > 0 else ""
            _tell(interruption, "publish_batch was interrupted while it was sending", told)
        raise


def _tell(error: BaseException, event: str, unsent: str) -> None:
    """Log what was not sent, and make a note of it to the exception."""
    logger.error("%s: %s", event, unsent)
    # What add_note() does, from Python 3.11 on.
    error.__notes__ = [*getattr(error, "__notes__", []), unsent]  # type: ignore[attr-defined]
