"""Messages that `basic_get` fetched. No thread extends them: SQS hides each for one visibility timeout."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.queue_options import OptionsOfQueue
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)


class FetchedMessages:
    """Receipt handles of one channel, until they are settled or visible again. Any thread.

    `acknowledge` and `reject` make a request, and return `False` for a message that was not fetched here.
    They raise the `SQSError` with which SQS did not do it.
    """

    def __init__(self, options_of: OptionsOfQueue, clock: Clock) -> None:
        self._options_of = options_of
        self._clock = clock
        # Guards _fetched. Reentrant: Celery's cold shutdown settles in a signal handler.
        self._lock = threading.RLock()
        self._fetched: dict[str, tuple[Queue, float]] = {}  # by handle, with its deadline

    def __len__(self) -> int:
        return len(self._fetched)

    def add(self, handle: str, queue: Queue, called: float) -> None:
        """A receive that began at that monotonic instant brought the message of this handle."""
        with self._lock:
            self._forget_lapsed()
            self._fetched[handle] = queue, called + self._options_of(queue.name).visibility_timeout

    def acknowledge(self, handle: str) -> bool:
        """Delete the message."""
        if (queue := self._take(handle)) is not None:
            _raise_failure(queue.sqs.delete(queue.url, [handle]))
        return queue is not None

    def reject(self, handle: str, redrive: RedriveBook, *, requeue: bool) -> bool:
        """Make the message visible again or, without `requeue`, give it up, as `Rejection.reject` does.

        Given up, it is left to the redrive policy, or deleted where there is none.
        """
        if (queue := self._take(handle)) is None:
            return False
        if requeue:
            _raise_failure(queue.sqs.change_visibility(queue.url, [(handle, 0)]))
            return True
        redrive.get(queue, self._clock.monotonic())
        if redrive.knows(queue) and not redrive.has_dead_letter_queue(queue):
            _raise_failure(queue.sqs.delete(queue.url, [handle]))
        return True

    def release_all(self) -> None:
        """Make visible again what nobody settled. Errors are logged."""
        with self._lock:
            self._forget_lapsed()
            left, self._fetched = self._fetched, {}
        by_queue: defaultdict[Queue, list[tuple[str, int]]] = defaultdict(list)
        for handle, (queue, _) in left.items():
            by_queue[queue].append((handle, 0))
        for queue, changes in by_queue.items():
            try:
                for start in range(0, len(changes), BATCH_ENTRIES):
                    queue.sqs.change_visibility(queue.url, changes[start : start + BATCH_ENTRIES])
            except SQSError as error:
                logger.warning(
                    "messages fetched from queue %r stay hidden until their visibility timeout is over: %s",
                    queue.name,
                    error,
                )

    def _take(self, handle: str) -> Queue | None:
        if not self._fetched:  # asked for each message of a consumer
            return None
        with self._lock:
            queue, _ = self._fetched.pop(handle, (None, 0.0))
            return queue

    def _forget_lapsed(self) -> None:
        now = self._clock.monotonic()
        self._fetched = {handle: kept for handle, kept in self._fetched.items() if kept[1] > now}


def _raise_failure(result: BatchResult) -> None:
    for error in result.failed.values():
        raise error
