"""Messages whose ETA is far away wait in SQS, hidden, instead of in a worker's memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS, VISIBILITY_HORIZON_SECONDS

#: How early a parked message comes back, to be held until its ETA and start on time.
LEAD_SECONDS = 5

#: The shortest wait for an ETA that is worth a copy: less than is left when a park ends, for that may have
#: been another worker's, with another visibility timeout.
SHORTEST_COPY_SECONDS = 1

#: The 12 hours count from the receive, which was a moment ago.
LONGEST_PARK_SECONDS = VISIBILITY_HORIZON_SECONDS - 60


@dataclass(frozen=True, slots=True)
class Limits:
    """How long SQS lets a message wait. All but the counts are seconds.

    Attributes:
        receive_count: 1 for the first receive.
        max_receive_count: the redrive policy's; `None` without one.
        age: since the message was sent.
        retention: the age at which SQS deletes it, hidden or not.
        visibility_timeout: the one in force.
        wasted_receives: see the function of that name.
        lead: see `park_for`.
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
        """Whether SQS would hand the message out again, instead of moving it to the dead-letter queue."""
        return self.max_receive_count is None or self.receive_count < self.max_receive_count

    @property
    def seconds_to_stay(self) -> int:
        """How long a message sent now may wait: the rest of the retention is for its run and retries."""
        return max(self.retention // 2, self.visibility_timeout + self.lead + 1)


@dataclass(frozen=True, slots=True)
class Hop:
    """A part of the wait for an ETA: hidden for `seconds`, as a copy if `renewed`."""

    seconds: int
    renewed: bool = False


def park_for(wait: float, visibility_timeout: int, lead: int = LEAD_SECONDS) -> int | None:
    """Seconds to hide a message whose ETA is `wait` seconds away; `None` is to hold it.

    A park within the visibility timeout is not worth its request and receive. It ends `lead` seconds before
    the ETA.
    """
    if wait <= visibility_timeout + lead:
        return None
    return min(math.floor(wait) - lead, LONGEST_PARK_SECONDS)


def hop_for(wait: float, limits: Limits) -> Hop | None:
    """How a message waits whose ETA is `wait` seconds away; `None` is to hold it.

    The first receive parks the message, unless the redrive policy allows no second receive. A later one
    renews it if the next park would outlast the retention, or be the last but one of the redrive policy: a
    copy that cannot be sent then has another chance. The last park before the ETA is always a copy's first:
    so waiting costs one of the receives that the policy allows, and the others are attempts. A copy is also
    what gets rid of wasted receives, which would count as attempts.
    """
    if limits.wasted_receives and wait >= SHORTEST_COPY_SECONDS:
        return Hop(min(math.floor(wait) - limits.lead, LONGEST_PARK_SECONDS), renewed=True)
    seconds = park_for(wait, limits.visibility_timeout, limits.lead)
    if seconds is None:
        return None
    left = limits.seconds_to_stay - limits.age
    if limits.receive_count <= 1:
        renewed = not limits.may_return or left <= limits.visibility_timeout + limits.lead
        return Hop(seconds, renewed=True) if renewed else Hop(min(seconds, math.floor(left)))
    most = limits.max_receive_count
    renewed = most is not None and (seconds < LONGEST_PARK_SECONDS or limits.receive_count >= most - 1)
    return Hop(seconds, renewed=renewed or seconds > left)


def parks_before(wait: float, visibility_timeout: int, lead: int = LEAD_SECONDS) -> int:
    """How many of a message's receives were parks and not attempts.

    Args:
        wait: seconds from the message's first receive to its ETA.
        visibility_timeout: the one in force, as for `park_for`.
        lead: likewise.
    """
    # Every park but the last is the longest. Floor division is exact; `math.ceil` of a quotient would round.
    return max(0, -int(-(wait - visibility_timeout - lead) // LONGEST_PARK_SECONDS))


def parks_so_far(
    eta: float, first_received: float, now: float, visibility_timeout: int, lead: int = LEAD_SECONDS
) -> int:
    """How many of a message's receives were parks. Instants are seconds since the epoch.

    If `first_received` is unknown (0), it is taken to be as early as SQS's longest retention allows: then a
    message may have an attempt too many, but never fails unrun.
    """
    return parks_before(eta - max(first_received, now - RETENTION_SECONDS), visibility_timeout, lead)


def wasted_receives(
    receive_count: int, parks: int, wait: float, visibility_timeout: int, lead: int = LEAD_SECONDS
) -> int:
    """How many receives of a message before this one were neither parks nor attempts: its ETA is to come.

    Another worker held the message for its ETA, and gave it back or died: kombu's own SQS transport holds
    such messages in memory, and gives all of them back when it ends. Or it has parked the message, where a
    worker with this visibility timeout would hold it.

    Args:
        receive_count: of the message, this receive included.
        parks: all parks from the first receive to the ETA, as `parks_so_far` counts them.
        wait: seconds until the ETA.
        visibility_timeout: the one in force.
        lead: see `park_for`.
    """
    parked = max(0, parks - parks_before(wait, visibility_timeout, lead))  # less than 0 where clocks differ
    return max(0, receive_count - 1 - parked) if wait > 0 else 0
