"""Audit of every worker of a test, as of a fleet: its events break no rule, and explain each further run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from celery_sqs_visibility.events import DeliveryEvent, subscribe

if TYPE_CHECKING:
    from celery_sqs_visibility.operate.audit.account import Account

#: On a busy machine a line comes late.
TOLERANCE_SECONDS = 15

#: The file of a worker's events, in its environment.
VARIABLE = "TEST_EVENTS_FILE"

#: One message in so many has its events written, all of them; not set is each.
SHARE_VARIABLE = "TEST_EVENTS_SHARE"


def file_beside(log_path: Path) -> Path:
    """Where a worker with that log writes its events."""
    return log_path.with_suffix(".events")


def write_events() -> None:
    """Write each event of this process's messages as a line of JSON, if its environment names a file."""
    if path := os.environ.get(VARIABLE):
        share = int(os.environ.get(SHARE_VARIABLE, "1"))
        subscribe(lambda event: _write(Path(path), event, share))


def _write(path: Path, event: DeliveryEvent, share: int) -> None:
    if crc32(event.delivery.message_id.encode()) % share:
        return
    from celery_sqs_visibility.delivery.event_log import line_of  # noqa: PLC0415 - once something happens

    now = datetime.now(UTC).isoformat()
    line = {"timestamp": now, "node": path.stem, "process": os.getpid(), **line_of(event)}
    with path.open("a") as file:  # one write, which a SIGKILL does not cut
        file.write(json.dumps(line, default=str) + "\n")


def account_of(logs: Iterable[Path]) -> Account:
    """Account for what these logs of workers tell."""
    from celery_sqs_visibility.operate.audit.account import Auditor  # noqa: PLC0415 - not in each worker

    auditor = Auditor(TOLERANCE_SECONDS)
    for path in logs:
        with path.open() as lines:
            auditor.read(lines)
    return auditor.account()


def check(logs: Iterable[Path]) -> Account:
    """Fail if their account has a broken rule, or a run that is unexplained; otherwise return it."""
    account = account_of(logs)
    assert account.is_well, f"{account.findings}, {account.more_runs}"
    return account
