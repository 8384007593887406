"""One `BotoSQS` for equal settings in a process, so that kombu's many Connections share connection pools."""

from __future__ import annotations

import os
from typing import Final

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_factory import ClientSettings
from celery_sqs_visibility.aws.process_lock import ProcessLock

_lock = ProcessLock()  # guards _shared
_shared: Final[dict[tuple[int, ClientSettings], BotoSQS]] = {}


def shared_sqs(settings: ClientSettings) -> BotoSQS:
    """Return this process's `SQS` for those settings; no client is made before its first call.

    May be called from any thread. A forked child gets its own.
    """
    key = os.getpid(), settings
    with _lock:
        if key not in _shared:
            _shared[key] = BotoSQS(settings)
        return _shared[key]


def close_shared() -> None:
    """Close every connection that this process's shared `SQS` hold. They stay usable; idempotent."""
    with _lock:
        mine = [sqs for (pid, _), sqs in _shared.items() if pid == os.getpid()]
    for sqs in mine:
        sqs.close()
