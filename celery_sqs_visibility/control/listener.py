"""Whether a monitor still receives: one that was killed leaves its queue, to which workers would send on."""

from __future__ import annotations

import logging
import math
from typing import Final

from celery_sqs_visibility.aws.queue_counts import HIDDEN, VISIBLE, counts
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, SQSError
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: From one look at the queue to the next. Shorter than the time for which SQS keeps a message there.
LOOK_SECONDS: Final = 40.0

#: Looks in a row at which nothing was received, since SQS's counts are approximate.
LOOKS: Final = 2

MAY_NOT_LOOK: Final = (
    "cannot tell whether a monitor still listens, and sends events to it until its queue is deleted: %s"
)


class Listener:
    """The monitor at a queue, as the one thread that sends to it sees it.

    What is received from a control queue is not deleted, but hidden until it expires there (`ATTRIBUTES` in
    `control/queues.py`). So where messages wait and none is hidden, nobody has received for a minute.

    Attributes:
        is_silent: whether it does not receive.
    """

    def __init__(self, queue: Queue, clock: Clock) -> None:
        self.is_silent = False
        self._queue = queue
        self._clock = clock
        self._looks = 0  # in a row at which nothing was received
        self._look_at = clock.monotonic() + LOOK_SECONDS

    def look(self) -> None:
        """Look, where that is due: a request."""
        if self._clock.monotonic() < self._look_at:
            return
        self._look_at = self._clock.monotonic() + LOOK_SECONDS
        try:
            waiting, received = counts(self._queue, VISIBLE, HIDDEN)
        except AccessDeniedError as error:
            logger.info(MAY_NOT_LOOK, error)
            self.is_silent, self._look_at = False, math.inf
        except QueueDoesNotExistError:
            pass  # the next send finds out, and ends the feed
        except SQSError as error:
            logger.debug("cannot tell whether a monitor still listens: %s", error)
        else:
            self._judge(waiting, received)

    def _judge(self, waiting: int, received: int) -> None:
        if not (waiting or received):
            return  # nothing was sent for a minute
        self._looks = 0 if received else self._looks + 1
        was, self.is_silent = self.is_silent, self._looks >= LOOKS
        if was != self.is_silent:
            does = "receives no more, and gets few" if self.is_silent else "receives again, and gets all"
            logger.info("a monitor %s of Celery's events (queue=%s)", does, self._queue.name)
