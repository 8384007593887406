"""One `BotoSQS` for equal settings in a process: kombu's many Connections share connection pools."""

from __future__ import annotations

import os
from typing import Final

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.process_lock import ProcessLock

_lock = ProcessLock()  # guards _shared
_shared: Final[dict[tuple[int, ClientSettings], BotoSQS]] = {}


def shared_sqs(settings: ClientSettings) -> BotoSQS:
    """Return this process's `SQS` for those settings, in any thread. A forked child gets its own."""
    key = os.getpid(), settings
    with _lock:
        if key not in _shared:
            _shared[key] = BotoSQS(settings)
        return _shared[key]
