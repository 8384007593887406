"""`celery -A proj sqs held`: what workers run and hold, and what their end would do to it now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    app_of,
    ask,
    controlled_broker_of,
    counted,
    duration,
    errors_in,
    json_option,
    nobody_answered,
    say,
    show_json,
    show_table,
    timeout_option,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.control_exchanges import EX_UNAVAILABLE

#: Rows of the table.
MAX_ROWS: Final = 200

COLUMNS: Final = [
    "worker",
    "state",
    "for",
    "task",
    "id",
    "queue",
    "attempt",
    "left",
    "lease",
    "SIGTERM",
    "SIGKILL",
]

#: What ending a worker does to one message, and to several; runs that end in time come first.
OUTCOMES: Final = {
    "ends in time": ("ends in time", "end in time"),
    "given back": ("is given back before it begins", "are given back before they begin"),
    "sent on": ("is sent on as a copy", "are sent on as copies"),
    "runs again": ("runs again", "run again"),
    "dead letter": ("becomes a dead letter", "become dead letters"),
    "lost": ("is lost, since it was acknowledged early", "are lost, since they were acknowledged early"),
}


@click.command()
@click.option(
    "--long", "least", type=duration, metavar="DURATION", help="Only what has run this long: 25s, 1h."
)
@timeout_option
@json_option
@click.pass_context
def held(ctx: click.Context, least: float | None, timeout: float, *, as_json: bool) -> None:
    """Show what workers run and hold, the longest first, and what ending them now would do to it.

    The lease is how long SQS still hides the message; workers extend it. "left" counts how often SQS would
    hand it out again. Whether a run ends in time is an estimate, by its time limit and by how long the
    worker's runs took lately.
    """
    app = app_of(ctx)
    with controlled_broker_of(app):
        answers = ask(app, "sqs_held", timeout, limit=MAX_ROWS)
    if not answers:
        raise CommandError(nobody_answered(timeout), EX_UNAVAILABLE)
    rows = rows_of(answers, SYSTEM_CLOCK.wall(), least)
    if as_json:
        others = {
            node: {name: value for name, value in answer.items() if name != "held"}
            for node, answer in answers.items()
        }
        show_json({"held": rows, "workers": others})
        return
    if rows:
        show_table(COLUMNS, [_cells(each) for each in rows])
    for sentence in summary(answers, rows):
        say(sentence)


def rows_of(answers: Mapping[str, Any], now: float, least: float | None = None) -> list[dict[str, Any]]:
    """The messages in all answers, with their worker and how long they have been there; the longest first.

    With `least`, only those that have been running for that many seconds.
    """
    rows = []
    for node, answer in answers.items():
        for each in answer.get("held", ()):
            seconds = max(0.0, now - (each["began"] or each["received"] or now))
            if least is None or (each["began"] and seconds >= least):
                rows.append({"worker": node, "seconds": round(seconds, 1), **each})
    return sorted(rows, key=lambda row: -row["seconds"])


def state_text(message: Mapping[str, Any]) -> str:
    """What a worker is doing with a message."""
    if message["lost"]:
        return "lost"
    if message["state"] == "copying":
        return "is sent on"
    if message["state"] == "running":
        return "runs"
    if (waits_for := message["waits_for"]) == "resume":
        return "waits: its task is paused"
    return f"waits for its {waits_for}" if waits_for else "waits"


def lease_left(message: Mapping[str, Any], now: float) -> float | None:
    """For how many seconds SQS still hides a message; `None` if it was deleted."""
    ends = message["lease_ends"]
    return None if ends is None else max(0.0, ends - now)


def summary(answers: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about what is not shown, who can't answer, and what a signal to every worker would do."""
    sentences = []
    total = sum(answer.get("messages", 0) for answer in answers.values())
    if total > len(rows):
        sentences.append(f"{len(rows)} of {total} are shown.")
    sentences += errors_in(answers)
    if not rows:
        return [*sentences, f"{counted(len(answers), 'worker')} asked: nothing to show."]
    have = {answer["runs_have"] for answer in answers.values() if "runs_have" in answer}
    seconds = " to ".join(duration_text(each) for each in sorted({min(have), max(have)}))
    for signal, key in ((f"SIGTERM now (runs have {seconds})", "at_sigterm"), ("SIGKILL now", "at_sigkill")):
        counts = Counter(row[key] for row in rows)
        told = [
            f"{count} {verbs[count > 1]}" for outcome, verbs in OUTCOMES.items() if (count := counts[outcome])
        ]
        sentences.append(f"{signal}: {', '.join(told)}.")
    return sentences


def _cells(row: Mapping[str, Any]) -> list[Any]:
    left = lease_left(row, SYSTEM_CLOCK.wall())
    return [
        row["worker"],
        state_text(row),
        duration_text(row["seconds"]),
        row["task"],
        row["task_id"],
        row["queue"],
        row["attempt"],
        row["receives_left"],
        None if left is None else duration_text(round(left)),
        row["at_sigterm"],
        row["at_sigkill"],
    ]
