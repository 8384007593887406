"""Audit of every worker of a test, as of a fleet: its events break no rule, and explain each further run."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from celery_sqs_visibility.events import DeliveryEvent, subscribe

#: On a busy machine a line comes late.
TOLERANCE_SECONDS = 15

#: The file of a worker's events, in its environment.
VARIABLE = "TEST_EVENTS_FILE"


def file_beside(log_path: Path) -> Path:
    """Where a worker with that log writes its events."""
    return log_path.with_suffix(".events")


def write_events() -> None:
    """Write each event of this process's messages as a line of JSON, if its environment names a file."""
    if path := os.environ.get(VARIABLE):
        subscribe(lambda event: _write(Path(path), event))


def _write(path: Path, event: DeliveryEvent) -> None:
    from celery_sqs_visibility.delivery.event_log import line_of  # noqa: PLC0415 - once something happens

    now = datetime.now(UTC).isoformat()
    line = {"timestamp": now, "node": path.stem, "process": os.getpid(), **line_of(event)}
    with path.open("a") as file:  # one write, which a SIGKILL does not cut
        file.write(json.dumps(line, default=str) + "\n")


def check(directory: Path) -> None:
    """Fail if the events of workers in that directory break a rule, or leave a run unexplained."""
    from celery_sqs_visibility.operate.audit.account import Auditor  # noqa: PLC0415 - not in each worker

    auditor = Auditor(TOLERANCE_SECONDS)
    for path in sorted(directory.glob("*.events")):
        auditor.read(path.read_text().splitlines())
    account = auditor.account()
    assert account.is_well, f"{account.findings}, {account.more_runs}"
