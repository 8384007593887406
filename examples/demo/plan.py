"""What the demo sends, and how each of it must end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

BUCKET = "shop"

DONE, DEAD = "done", "dead"


@dataclass(frozen=True)
class Plan:
    """One task.

    Attributes:
        label: what the audience reads.
        task: its name.
        args: its arguments.
        notification: what S3 puts into the queue in place of a task.
        gaps: seconds between a failure and the next run, each at least that long. One attempt more than that.
        outcome: how it ends.
        result: the text it returns.
        send_at: seconds after the start.
        extended: whether the heartbeat must have been at it.
    """

    label: str
    task: str
    args: tuple[Any, ...]
    gaps: tuple[float, ...] = ()
    outcome: str = DONE
    result: str | None = None
    send_at: float = 0
    extended: bool = False
    notification: dict[str, Any] | None = None


def object_created(key: str) -> dict[str, Any]:
    """What S3 sends to a queue when an object has arrived, as far as anybody here reads it."""
    about = {"bucket": {"name": BUCKET}, "object": {"key": quote_plus(key)}}
    return {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": about}]}


def fill_buckets(buckets: Path) -> None:
    """The objects to import."""
    bucket = buckets / BUCKET
    bucket.mkdir(parents=True)
    for name, count in ("monday", 1_000), ("tuesday", 1_500), ("year", 400_000):
        bucket.joinpath(f"{name}.csv").write_text("".join(f"{name}-{i},{i}.99\n" for i in range(count)))
    bad = b"friday-1,10.00\nfriday-2,ten\nfriday-\xff\xfe,1.00\nno comma\nfriday-3,12.50\n"
    bucket.joinpath("friday.csv").write_bytes(bad)


def plans(webhooks: str, visibility_timeout: float) -> list[Plan]:
    def imported(name: str, result: str, send_at: float = 0, note: str = "") -> Plan:
        event = object_created(f"{name}.csv")
        label = f"import {name}{note}"
        return Plan(label, "proj.tasks.import_object", (), (), DONE, result, send_at, notification=event)

    def webhook(path: str, gaps: tuple[float, ...] = (), outcome: str = DONE) -> Plan:
        args = (f"{webhooks}{path}", {"order": "monday-1"})
        result = "HTTP status 200" if outcome == DONE else None
        return Plan(f"webhook {path}", "proj.tasks.call_webhook", args, gaps, outcome, result)

    chapters = 4
    return [
        Plan(
            f"report of {1.6 * visibility_timeout:g} s",
            "proj.tasks.build_report",
            (chapters, 1.6 * visibility_timeout / chapters),
            result=f"{chapters} chapters",
            extended=True,
        ),
        Plan("child killed once", "demo.app.crash_once", (), gaps=(1,), result="survived"),
        webhook("/shaky", gaps=(1, 2)),
        webhook("/busy", gaps=(2,)),
        webhook("/broken", gaps=(1, 2, 4), outcome=DEAD),
        webhook("/gone", outcome=DEAD),
        imported("monday", "1000 orders"),
        imported("tuesday", "1500 orders"),
        imported("friday", "2 orders, 3 skipped"),
        imported("year", "400000 orders"),
        imported("monday", "imported before", send_at=4, note=" again"),
    ]
