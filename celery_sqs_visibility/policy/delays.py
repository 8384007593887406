"""Messages with an ETA that are published: for how long SQS does not show them, and which cannot wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.policy.parking import LEAD_SECONDS
from celery_sqs_visibility.policy.queue_attributes import RETENTION
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS, RETENTION_SECONDS

_ADVICE: Final = "Let EventBridge Scheduler send it, or raise the queue's MessageRetentionPeriod."


#: The longest wait for an ETA. A message waits in hops of 12 hours, each of which costs requests.
LONGEST_WAIT_SECONDS: Final = 10 * 365 * 86_400
NEVER: Final = "more than ten years away: leave the task to a schedule"


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """What a publisher knows of the queue and its workers. Durations are seconds.

    Attributes:
        sleep: how long a worker may sleep between two polls. A worker that sleeps when a delay ends cannot
            know of the message, so the delay ends that much before the ETA: the worker then holds the
            message, or hides it and does not sleep past its return.
        retention: the queue's, `None` where it is not known.
        visibility_timeout: the workers'.
    """

    sleep: float = 0.0
    retention: int | None = None
    visibility_timeout: int = 0

    def delay_for(self, wait: float) -> int | None:
        """`DelaySeconds` for an ETA that is `wait` seconds away; `None`: the queue's own.

        Whole seconds, rounded down: a worker that has the message holds it for the rest, and is on time.
        """
        most = DELAY_SECONDS
        if self.retention is not None:  # the other half is for a backlog, the run and its retries
            most = min(most, self.retention // 2)
        delay = math.floor(min(wait - self.sleep, most))
        return delay if delay > 0 else None

    def why_not(self, wait: float, *, fifo: bool) -> str | None:
        """Why no worker can see to it that the message waits `wait` seconds for its ETA; `None`: it can.

        In a standard queue a wait outlasts the retention as a copy, unless the retention is too short for a
        worker to make one. In a FIFO queue a copy would let the rest of its group go first.
        """
        retention = self.retention or (RETENTION_SECONDS if fifo else None)
        if retention is None or wait < retention:
            return None
        if fifo:
            return f"{self._kept(retention)}, and a copy would lose its place in its group. {_ADVICE}"
        if retention <= self.visibility_timeout + LEAD_SECONDS + 1:
            timeout = f"visibility_timeout ({self.visibility_timeout} s)"
            return f"{self._kept(retention)}, too short to copy it after a {timeout}. {_ADVICE}"
        return None

    def why_not_delayed(self, delay: int | None) -> str | None:
        """Why SQS would delete the message before it shows it; `None`: it would not, as far as is known."""
        if delay is None or self.retention is None or delay < self.retention:
            return None
        return f"{self._kept(self.retention)}, and then deletes it unseen. {_ADVICE}"

    def _kept(self, retention: int) -> str:
        most = " at the most" if self.retention is None else ""
        return f"the queue keeps a message for {retention:,} s{most}"


def is_never(wait: float) -> bool:
    """Whether an ETA that is `wait` seconds away is a mistake, or another word for never."""
    return wait > LONGEST_WAIT_SECONDS


def kept_delay(given: Any) -> tuple[int | None, str]:
    """What SQS is asked to keep of a publisher's `delay_seconds`, and why it is not all; "": it is all."""
    try:
        seconds = int(given)
    except (TypeError, ValueError, OverflowError):
        seconds = -1
    if seconds < 0:
        return None, "it is no number of seconds from 0 on, and left out"
    if seconds > DELAY_SECONDS:
        return DELAY_SECONDS, f"SQS takes {DELAY_SECONDS} at the most, with which it is sent"
    return seconds, ""


def stated_retention(attributes: Mapping[str, Any]) -> int | None:
    """The retention that `sqs-creation-attributes` gives to queues; `None` where it does not."""
    try:
        return int(attributes[RETENTION])
    except (KeyError, TypeError, ValueError):
        return None
