"""Messages whose ETA is far away wait in SQS, hidden, instead of in a worker's memory."""

from __future__ import annotations

import math

from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

#: A parked message is fetched back this many seconds early and then held, so that it starts on time.
LEAD = 5

#: The 12 hours count from the receive, which was a moment ago.
LONGEST_PARK = VISIBILITY_HORIZON - 60


def park_for(wait: float, visibility_timeout: int) -> int | None:
    """Seconds to hide a message whose ETA is `wait` seconds away; `None`: hold it.

    A wait within the visibility timeout is not worth a request and a receive.
    """
    if wait <= visibility_timeout + LEAD:
        return None
    return min(math.floor(wait) - LEAD, LONGEST_PARK)


def parks_before(wait: float, visibility_timeout: int) -> int:
    """How many of a message's receives were parks and not attempts.

    Args:
        wait: seconds from the message's first receive to its ETA.
        visibility_timeout: the one in force, as for `park_for`.
    """
    parks = 0
    while (seconds := park_for(wait, visibility_timeout)) is not None:
        parks += 1
        wait -= seconds
    return parks
