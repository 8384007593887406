"""`celery -A proj sqs doctor`, and its report as text and as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

import click

from celery_sqs_visibility.operate.doctor.checks import findings_of
from celery_sqs_visibility.operate.doctor.facts import Facts, Finding, Severity
from celery_sqs_visibility.operate.doctor.gathering import gather
from celery_sqs_visibility.operate.doctor.kombu_changes import (
    facts_of_switch,
    findings_of_switch,
    settings_to_paste,
    switched_broker,
)
from celery_sqs_visibility.operate.invocation import app_of, broker_of, counted, json_option, say, show_json


@click.command()
@click.option("--queue", "-Q", "queues", multiple=True, metavar="QUEUE", help="This queue; all by default.")
@click.option("--from-kombu", is_flag=True, help="What changes for an app still on kombu's transport.")
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    queues: tuple[str, ...],
    from_kombu: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Check settings, queues and permissions against each other.

    Prints what is wrong in the order of damage: errors lose work or do it twice, warnings may, notes cost
    money or do nothing. Each says what to paste. Nothing is changed, sent, received or created. The
    permissions are those of the credentials of this command: run it where the worker runs, or with its role.

    Exit status: 0 with notes at the most, 1 with an error or a warning.
    """
    app = app_of(ctx)
    if from_kombu:
        with switched_broker(app) as (broker, refused):
            facts = facts_of_switch(gather(app, broker, queues))
        findings = findings_of_switch(facts, app.conf.broker_transport_options, refused)
        paste = settings_to_paste(app.conf.broker_transport_options, refused)
    else:
        with broker_of(app) as broker:
            facts = gather(app, broker, queues)
        findings, paste = findings_of(facts), ""
    if as_json:
        show_json(report_json(findings, facts, paste))
    else:
        show(findings, facts, paste)
    ctx.exit(0 if is_well(findings) else 1)


INDENT: Final = " " * 9
COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def is_well(findings: Iterable[Finding]) -> bool:
    """Returns whether no finding is worse than a note."""
    return all(finding.severity is Severity.NOTE for finding in findings)


def show(findings: list[Finding], facts: Facts, paste: str = "") -> None:
    """Print the findings, the worst first, and a summary."""
    for finding in findings:
        say(finding.severity.name.ljust(len(INDENT)), nl=False, fg=COLOURS[finding.severity], bold=True)
        say(_wrapped(f"{finding.thing}: {finding.problem}"))
        say(INDENT + _wrapped(finding.consequence))
        say(f"{INDENT}-> {finding.remedy}\n")  # in one line, so that it can be pasted
    if paste:
        say(f"To switch:\n\n{textwrap.indent(paste, '    ')}\n")
    say(summary(findings, facts))


def summary(findings: list[Finding], facts: Facts) -> str:
    """The numbers of findings, and of the things that were checked."""
    counts = Counter(finding.severity for finding in findings)
    found = ", ".join(counted(counts[each], each.name.lower()) for each in Severity)
    probed = sum(len(queue.permissions) for queue in facts.queues) + len(facts.control_permissions)
    looked = ", ".join(
        [
            counted(len(facts.queues), "queue"),
            counted(len(facts.tasks) + len(facts.unbound), "task"),
            counted(probed, "permission"),
            counted(len(facts.settings), "setting"),
        ]
    )
    return f"{found}; looked at {looked}."


def report_json(findings: list[Finding], facts: Facts, paste: str = "") -> dict[str, Any]:
    """The report as JSON."""
    return {
        "well": is_well(findings),
        "summary": summary(findings, facts),
        "findings": [{**asdict(each), "severity": each.severity.name.lower()} for each in findings],
        "rights": {
            queue.name: {name: permission.value for name, permission in queue.permissions.items()}
            for queue in facts.queues
        },
        "repeats_by_default": [task.name for task in facts.tasks if task.repeats_by_default],
        "control_rights": {name: permission.value for name, permission in facts.control_permissions.items()},
        **({"to_switch": paste} if paste else {}),
    }


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, 80 - len(INDENT), break_long_words=False, break_on_hyphens=False)
    return f"\n{INDENT}".join(lines)
