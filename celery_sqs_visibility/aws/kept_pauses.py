"""Kept pauses: a tag of a queue says until when workers that begin to consume it do not poll it.

`celery -A proj sqs pause --keep` sets the tag, `resume` removes it.
"""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from celery_sqs_visibility.events import log_safely

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue

logger = logging.getLogger(__name__)

#: The key of the tag. Its value is the end of the pause in UTC, such as `2026-11-29T04:20:00Z`, or `NO_END`.
PAUSE_TAG: Final = "celery-paused-until"

#: The value of a pause that has no end.
NO_END: Final = "resumed"

#: A pause beyond the year 9999 has no end.
_MAX_SECONDS: Final = 253_402_300_799

_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


def keep_pause(queue: Queue, until: float) -> None:
    """Set the tag: paused until that instant, in seconds since the epoch, or infinity.

    Raises:
        AccessDeniedError: sqs:TagQueue is not allowed.
        SQSError: SQS could not be asked.
    """
    end = NO_END
    if until < _MAX_SECONDS:
        end = datetime.fromtimestamp(math.ceil(until), UTC).strftime(_FORMAT)
    queue.sqs.tag_queue(queue.url, {PAUSE_TAG: end})


def end_kept_pause(queue: Queue) -> bool:
    """Remove the tag. Returns whether there was one.

    Raises:
        AccessDeniedError: sqs:ListQueueTags or sqs:UntagQueue is not allowed.
        SQSError: SQS could not be asked.
    """
    if PAUSE_TAG not in queue.sqs.queue_tags(queue.url):
        return False
    queue.sqs.untag_queue(queue.url, [PAUSE_TAG])
    return True


def kept_until(queue: Queue) -> float | None:
    """Ask until when a pause is kept: seconds since the epoch, or infinity; `None` without a tag.

    A value that nobody can read pauses until it is removed: somebody wanted a pause.

    Raises:
        AccessDeniedError: sqs:ListQueueTags is not allowed.
        SQSError: SQS could not be asked.
    """
    end = queue.sqs.queue_tags(queue.url).get(PAUSE_TAG)
    if end is None:
        return None
    try:
        return math.inf if end == NO_END else datetime.strptime(end, _FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        log_safely(
            logger.warning,
            "the tag that keeps a pause cannot be read, so its queue is paused until `celery -A ... sqs "
            "resume` removes it: queue %r, %s=%r; expected %r or a time such as 2026-11-29T04:20:00Z",
            queue.name,
            PAUSE_TAG,
            end,
            NO_END,
        )
        return math.inf
