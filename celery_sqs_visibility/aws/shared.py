"""One `BotoSQS` for equal settings in a process, so that kombu's many Connections share connection pools."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_factory import ClientSettings
from celery_sqs_visibility.aws.process_lock import ProcessLock

logger = logging.getLogger(__name__)

#: Called with the API action, the seconds it took, and "ok" or the error's code.
Listener = Callable[[str, float, str], None]

#: Who hears of every call that a `shared_sqs` makes, in the thread that made it: append to it and remove
#: from it at any time, in any thread. A listener should be quick; what it raises is logged, the others are
#: still called. A forked child starts with its parent's listeners.
on_request: Final[list[Listener]] = []

_lock = ProcessLock()  # guards _shared
_shared: Final[dict[tuple[int, ClientSettings], BotoSQS]] = {}


def shared_sqs(settings: ClientSettings) -> BotoSQS:
    """Return this process's `SQS` for those settings; no client is made before its first call.

    May be called from any thread. A forked child gets its own.
    """
    key = os.getpid(), settings
    with _lock:
        if key not in _shared:
            _shared[key] = BotoSQS(settings, _tell_listeners)
        return _shared[key]


def close_shared() -> None:
    """Close every connection that this process's shared `SQS` hold. They stay usable; idempotent."""
    with _lock:
        mine = [sqs for (pid, _), sqs in _shared.items() if pid == os.getpid()]
    for sqs in mine:
        sqs.close()


def _tell_listeners(action: str, seconds: float, outcome: str) -> None:
    for listener in tuple(on_request):
        try:
            listener(action, seconds, outcome)
        except Exception:
            logger.exception("A listener to SQS requests failed.", extra={"action": action})
