"""When a periodic task is due, in words on which two beats agree. Instants are seconds since the epoch."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from celery_sqs_visibility.policy.quotas import DEDUPLICATION_ID_CHARACTERS

#: API_SendMessage: letters, digits and ASCII punctuation.
_LEGAL: Final = re.compile("[!-~]+")

#: The shortest time to look back for a schedule's latest occurrence; crontabs count minutes.
_FIRST_LOOK_SECONDS: Final = 60.0


def on_grid(instant: float, every: float) -> float:
    """The last multiple of an interval since the epoch: beats that were started at any times agree on it."""
    return math.floor(instant / every) * every


def until_next(instant: float, every: float) -> float:
    """Seconds until the next multiple of the interval; never 0."""
    return on_grid(instant, every) + every - instant


def latest(after: Callable[[float], float], since: float, now: float) -> float:
    """A schedule's latest occurrence, not after `now`.

    A beat that was down finds several that it missed; the beat that was not has just sent the latest.

    Args:
        after: gives the first occurrence after an instant.
        since: there is an occurrence between then and now.
        now: the time.
    """
    look = _FIRST_LOOK_SECONDS
    while now - look > since and after(now - look) > now:
        look *= 2
    found = after(max(since, now - look))
    while found < (following := after(found)) <= now:
        found = following
    return found


def due_key(name: str, due: float) -> str:
    """`name@due`, as SQS takes it for a MessageDeduplicationId; another name has its hash there."""
    instant = datetime.fromtimestamp(due, timezone.utc).isoformat().replace("+00:00", "Z")
    key = f"{name}@{instant}"
    if len(key) <= DEDUPLICATION_ID_CHARACTERS and _LEGAL.fullmatch(key):
        return key
    return f"{hashlib.sha256(name.encode()).hexdigest()}@{instant}"
