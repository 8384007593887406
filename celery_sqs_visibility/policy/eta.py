"""Waits for a task's ETA in SQS, not in a worker's memory: first delayed, then hidden."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.policy.queue_names import RETENTION
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS, RETENTION_SECONDS, VISIBILITY_HORIZON_SECONDS

#: How long before its ETA a parked message comes back, so that it starts on time.
LEAD_SECONDS = 5

#: The shortest wait for an ETA that is worth a copy. It is shorter than what remains after a park, because
#: another worker with another visibility timeout may have parked the message.
MIN_COPY_SECONDS = 1

#: Less than 12 hours, because these count from the receive, a moment ago.
MAX_PARK_SECONDS = VISIBILITY_HORIZON_SECONDS - 60

_ADVICE: Final = "Let EventBridge Scheduler send it, or raise the queue's MessageRetentionPeriod."

#: The longest wait for an ETA. Each park of 12 hours costs requests.
MAX_WAIT_SECONDS: Final = 10 * 365 * 86_400

NEVER: Final = "more than ten years away: leave the task to a schedule"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long SQS lets a message wait. Everything except the counts is in seconds.

    Attributes:
        receive_count: 1 for the first receive.
        max_receive_count: the redrive policy's; `None` without one.
        age: the time since the message was sent.
        retention: the age at which SQS deletes it, hidden or not.
        visibility_timeout: the current one.
        wasted_receives: the result of the function of that name.
        lead: how long before the ETA a park ends.
    """

    receive_count: int
    max_receive_count: int | None
    age: float
    retention: int
    visibility_timeout: int
    wasted_receives: int = 0
    lead: int = LEAD_SECONDS

    @property
    def may_return(self) -> bool:
        """Whether SQS would deliver the message again, rather than move it to the dead-letter queue."""
        return self.max_receive_count is None or self.receive_count < self.max_receive_count

    @property
    def seconds_to_stay(self) -> int:
        """How long a message sent now may wait. The rest of the retention is for its run and retries."""
        return max(self.retention // 2, self.visibility_timeout + self.lead + 1)


@dataclass(frozen=True, slots=True)
class Park:
    """A part of the wait for an ETA: hidden for `seconds`, as a copy if `renewed`."""

    seconds: int
    renewed: bool = False


def park_seconds(wait: float, visibility_timeout: int, lead: int = LEAD_SECONDS) -> int | None:
    """Seconds to hide a message whose ETA is `wait` seconds away; `None` means to hold it.

    A park ends `lead` seconds before the ETA. A wait within the visibility timeout is not worth a request.
    """
    if wait <= visibility_timeout + lead:
        return None
    return min(math.floor(wait) - lead, MAX_PARK_SECONDS)


def plan_park(wait: float, limits: Limits) -> Park | None:
    """Choose how a message waits whose ETA is `wait` seconds away; `None` means to hold it.

    The first receive parks the message, unless the redrive policy allows no second receive. A later receive
    renews it if the next park would outlast the retention, or would leave only one receive, so that a failed
    copy has another chance. The last park before the ETA always begins with a copy. So waiting costs one of
    the receives that the policy allows, and the others are attempts. A copy also drops wasted receives, which
    would count as attempts.
    """
    if limits.wasted_receives and wait >= MIN_COPY_SECONDS:
        return Park(min(math.floor(wait) - limits.lead, MAX_PARK_SECONDS), renewed=True)
    seconds = park_seconds(wait, limits.visibility_timeout, limits.lead)
    if seconds is None:
        return None
    left = limits.seconds_to_stay - limits.age
    if limits.receive_count <= 1:
        renewed = not limits.may_return or left <= limits.visibility_timeout + limits.lead
        return Park(seconds, renewed=True) if renewed else Park(min(seconds, math.floor(left)))
    most = limits.max_receive_count
    renewed = most is not None and (seconds < MAX_PARK_SECONDS or limits.receive_count >= most - 1)
    return Park(seconds, renewed=renewed or seconds > left)


def parks_needed(wait: float, visibility_timeout: int, lead: int = LEAD_SECONDS) -> int:
    """Count the parks (`park_seconds`) of a wait of `wait` seconds, from the first receive to the ETA."""
    # Every park but the last is the longest. Floor division is exact; `math.ceil` of a quotient would round.
    return max(0, -int(-(wait - visibility_timeout - lead) // MAX_PARK_SECONDS))


def parks_until_eta(
    eta: float, first_received: float, now: float, visibility_timeout: int, lead: int = LEAD_SECONDS
) -> int:
    """Count the parks from the first receive to the ETA. Instants are seconds since the epoch.

    An unknown `first_received` (0) counts as the earliest that SQS's retention allows: the message may get
    one attempt too many, but never fails without a run.
    """
    return parks_needed(eta - max(first_received, now - RETENTION_SECONDS), visibility_timeout, lead)


def wasted_receives(
    receive_count: int, parkings: int, wait: float, visibility_timeout: int, lead: int = LEAD_SECONDS
) -> int:
    """Count the earlier receives that were neither parks nor attempts, of a message whose ETA is to come.

    Another worker held the message and gave it back or died: kombu's SQS transport holds such messages in
    memory, and returns all of them when it stops. Or another worker parked the message, where one with this
    visibility timeout would hold it.

    Args:
        receive_count: of the message, including this receive.
        parkings: the result of `parks_until_eta`.
        wait: seconds until the ETA.
        visibility_timeout: the current one.
        lead: how long before the ETA a park ends.
    """
    # Less than 0 if clocks differ.
    parked = max(0, parkings - parks_needed(wait, visibility_timeout, lead))
    return max(0, receive_count - 1 - parked) if wait > 0 else 0


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """What a publisher knows of the queue and its workers. Durations are in seconds.

    Attributes:
        sleep: how long a worker may sleep between two polls. Delays end that long before the ETA, because a
            sleeping worker does not know of the message.
        retention: the queue's; `None` if unknown.
        visibility_timeout: the workers'.
    """

    sleep: float = 0.0
    retention: int | None = None
    visibility_timeout: int = 0

    def delay_for(self, wait: float) -> int | None:
        """`DelaySeconds` for an ETA that is `wait` seconds away; `None` means the queue's own delay.

        Rounded down: the worker holds the message for the rest of the second.
        """
        most = DELAY_SECONDS
        if self.retention is not None:  # the other half is for a backlog, the run and its retries
            most = min(most, self.retention // 2)
        delay = math.floor(min(wait - self.sleep, most))
        return delay if delay > 0 else None

    def why_not(self, wait: float, *, fifo: bool) -> str | None:
        """Why a message can't wait `wait` seconds for its ETA; `None` if it can.

        In a standard queue copies outlast the retention, unless it is too short to make a copy. In a FIFO
        queue the rest of the group would overtake a copy.
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
        """Why SQS would delete the message before its delay ends; `None` if it wouldn't, or if unknown."""
        if delay is None or self.retention is None or delay < self.retention:
            return None
        return f"{self._kept(self.retention)}, and then deletes it unseen. {_ADVICE}"

    def _kept(self, retention: int) -> str:
        most = " at most" if self.retention is None else ""
        return f"the queue keeps a message for {retention:,} s{most}"


def is_never(wait: float) -> bool:
    """Returns whether an ETA that is `wait` seconds away is a mistake, or means never."""
    return wait > MAX_WAIT_SECONDS


def kept_delay(given: Any) -> tuple[int | None, str]:
    """Clamp a publisher's `delay_seconds`. Returns it with the reason for the change, or ""."""
    try:
        seconds = int(given)
    except (TypeError, ValueError, OverflowError):
        seconds = -1
    if seconds < 0:
        return None, "it is not a number of seconds of at least 0, and is left out"
    if seconds > DELAY_SECONDS:
        return DELAY_SECONDS, f"SQS takes at most {DELAY_SECONDS}, which is used"
    return seconds, ""


def stated_retention(attributes: Mapping[str, Any]) -> int | None:
    """The retention in `sqs-creation-attributes`; `None` without one."""
    try:
        return int(attributes[RETENTION])
    except (KeyError, TypeError, ValueError):
        return None
