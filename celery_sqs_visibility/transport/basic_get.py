"""Messages that `basic_get` fetched: no thread looks after them, so each is held for a visibility timeout."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import islice

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)


class Fetched:
    """Receipt handles of one channel, until they are settled or their visibility timeout is over. Any thread.

    Args:
        visibility_timeout: seconds that a fetched message is hidden.
        redrive: gives the queues' redrive policies.
        clock: time.
    """

    def __init__(self, visibility_timeout: float, redrive: Callable[[], RedriveBook], clock: Clock) -> None:
        self._visibility_timeout = visibility_timeout
        self._redrive = redrive
        self._clock = clock
        # Guards _queues. Reentrant: Celery's cold shutdown settles in a signal handler.
        self._lock = threading.RLock()
        self._queues: dict[str, tuple[Queue, float]] = {}  # by handle, with its deadline; the oldest first

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, handle: str, queue: Queue, called: float) -> None:
        """A request that began at that monotonic instant fetched the message of this handle."""
        with self._lock:
            self._forget_lapsed()
            self._queues[handle] = queue, called + self._visibility_timeout

    def acknowledge(self, handle: str) -> bool:
        """Delete the message, if it is one of these; whether it is. A request.

        Raises:
            SQSError: it was not deleted, and comes back.
        """
        if (queue := self._take(handle)) is not None:
            _raise_failures(queue.sqs.delete(queue.url, [handle]))
        return queue is not None

    def reject(self, handle: str, *, requeue: bool) -> bool:
        """Make the message visible again or, without `requeue`, give it up, if it is one of these.

        As `Failures.reject`: given up, it is left to the redrive policy, or deleted where there is none.

        Returns:
            Whether it is one of these.

        Raises:
            SQSError: SQS did not do it.
        """
        if (queue := self._take(handle)) is None:
            return False
        if requeue:
            _raise_failures(queue.sqs.change_visibility(queue.url, [(handle, 0)]))
        elif not self._may_have_dead_letters(queue):
            _raise_failures(queue.sqs.delete(queue.url, [handle]))
        return True

    def _may_have_dead_letters(self, queue: Queue) -> bool:
        redrive = self._redrive()
        redrive.get(queue, self._clock.monotonic())
        return redrive.has_dead_letter_queue(queue) or not redrive.knows(queue)

    def _take(self, handle: str) -> Queue | None:
        if not self._queues:  # of a consumer's channel, for each of its messages
            return None
        with self._lock:
            queue, _ = self._queues.pop(handle, (None, 0.0))
            return queue

    def give_back(self) -> None:
        """Make what nobody settled visible again. A request for ten messages; errors are logged."""
        with self._lock:
            self._forget_lapsed()
            left, self._queues = self._queues, {}
        handles: defaultdict[Queue, list[str]] = defaultdict(list)
        for handle, (queue, _) in left.items():
            handles[queue].append(handle)
        for queue, those in handles.items():
            self._release(queue, those)

    def _forget_lapsed(self) -> None:
        now = self._clock.monotonic()
        while self._queues:
            handle, (_, deadline) = next(iter(self._queues.items()))
            if deadline > now:
                break
            del self._queues[handle]

    @staticmethod
    def _release(queue: Queue, handles: list[str]) -> None:
        rest = iter(handles)
        try:
            while batch := [(handle, 0) for handle in islice(rest, BATCH_ENTRIES)]:
                queue.sqs.change_visibility(queue.url, batch)
        except SQSError as error:
            logger.warning(
                "messages fetched from queue %r stay hidden until their visibility timeout is over: %s",
                queue.name,
                error,
            )


def _raise_failures(result: BatchResult) -> None:
    for error in result.failed.values():
        raise error
