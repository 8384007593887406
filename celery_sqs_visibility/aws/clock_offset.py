"""Offset of this machine's clock from the clock of an endpoint, by the Date header of an answer."""

from __future__ import annotations

import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import Final

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

#: A look, not a request of the application's: an endpoint that does not answer soon is left alone.
TIMEOUT_SECONDS: Final = 3


def clock_offset(endpoint: str) -> float | None:
    """Seconds that this clock is ahead; `None` where no answer tells. The header has whole seconds.

    The request is not signed: SQS refuses it, whatever this machine's clock says, and that answer has a date.
    """
    if not endpoint.startswith(("https://", "http://")):
        return None
    began = SYSTEM_CLOCK.wall()
    try:
        with urllib.request.urlopen(endpoint, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - see above
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as refusal:
        date = refusal.headers.get("Date")
        refusal.close()
    except (OSError, ValueError):
        return None
    try:
        theirs = parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError):
        return None
    return (began + SYSTEM_CLOCK.wall()) / 2 - (theirs + 0.5)
