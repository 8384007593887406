"""Queues that accept copies: sending to them is allowed, and so is deleting the originals.

An original that can't be deleted comes back and is copied again, and so are its copies.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import REDRIVE_SECONDS
from celery_sqs_visibility.core.copies import DeletesRefusedError
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
)
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: A receipt handle that SQS never issued. With permission to delete, SQS answers that it is invalid; without,
#: that access is denied.
NO_HANDLE: Final = "celery-sqs-visibility-may-delete"

NOT_DELETED: Final = (
    "cannot delete messages of queue %r, so no copies are sent there, which would grow without end: messages "
    "that wait for an ETA or a key are hidden, and so are events of several records; allow "
    "sqs:DeleteMessage: %s"
)


class CopyPermissions:
    """Known permissions of queues to send copies and delete originals. Any thread; each access is atomic.

    An answer of SQS is valid for `REDRIVE_SECONDS`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By queue URL, when the queue last refused a copy, refused a deletion, or accepted one (monotonic).
        self._sends_refused: dict[str, float] = {}
        self._deletes_refused: dict[str, float] = {}
        self._deleted: dict[str, float] = {}

    def may_copy(self, queue: Queue) -> bool:
        """Whether neither sending nor deleting is known to be refused. Makes no request."""
        return not (
            self._is_recent(self._sends_refused, queue) or self._is_recent(self._deletes_refused, queue)
        )

    def note_sends_refused(self, queue: Queue) -> bool:
        """Note that the queue has refused a copy. Returns whether for the first time."""
        first = queue.url not in self._sends_refused
        self._sends_refused[queue.url] = self._clock.monotonic()
        return first

    def note_deleted(self, queue: Queue) -> None:
        """Note that SQS has deleted messages of the queue."""
        self._deleted[queue.url] = self._clock.monotonic()
        self._deletes_refused.pop(queue.url, None)

    def note_deletes_refused(self, queue: Queue, error: SQSError) -> None:
        """Note that SQS has refused to delete messages of the queue."""
        first = queue.url not in self._deletes_refused
        self._deletes_refused[queue.url] = self._clock.monotonic()
        self._deleted.pop(queue.url, None)
        if first:
            log_safely(logger.warning, NOT_DELETED, queue.name, error)

    def require_deletes(self, queue: Queue) -> None:
        """Make sure that messages of the queue can be deleted; asks SQS if that is not known.

        A thread that sends.

        Raises:
            DeletesRefusedError: they can't be deleted.
            SQSError: SQS could not be asked now; try again.
        """
        if self._is_recent(self._deleted, queue):
            return
        if not self._is_recent(self._deletes_refused, queue) and self._ask(queue):
            return
        raise DeletesRefusedError(
            f"messages of queue {queue.name!r} cannot be deleted", action="DeleteMessage"
        )

    def _ask(self, queue: Queue) -> bool:
        """Ask SQS whether it would delete a message of the queue."""
        try:
            with suppress(ReceiptHandleInvalidError, RequestRefusedError):
                queue.sqs.delete(queue.url, [NO_HANDLE])
        except AccessDeniedError as error:
            self.note_deletes_refused(queue, error)
            return False
        self.note_deleted(queue)
        return True

    def _is_recent(self, known: dict[str, float], queue: Queue) -> bool:
        at = known.get(queue.url)
        return at is not None and self._clock.monotonic() - at <= REDRIVE_SECONDS
