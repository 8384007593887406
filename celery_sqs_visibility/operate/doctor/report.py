"""A doctor's report, for people and as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from celery_sqs_visibility.operate.doctor.facts import Facts
from celery_sqs_visibility.operate.doctor.findings import Finding, Severity
from celery_sqs_visibility.operate.invocation import counted, say

WIDTH_COLUMNS: Final = 80
INDENT: Final = " " * 9
COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether there are notes at the most."""
    return all(finding.severity is Severity.NOTE for finding in findings)


def show(findings: list[Finding], facts: Facts, paste: str = "") -> None:
    """Print them, the worst first, and a summary."""
    for finding in findings:
        say(finding.severity.name.ljust(len(INDENT)), nl=False, fg=COLOURS[finding.severity], bold=True)
        say(_wrapped(f"{finding.thing}: {finding.problem}"))
        say(INDENT + _wrapped(finding.consequence))
        say(f"{INDENT}-> {finding.remedy}\n")  # in one line, to be pasted
    if paste:
        say(f"To switch:\n\n{textwrap.indent(paste, '    ')}\n")
    say(summary(findings, facts))


def summary(findings: list[Finding], facts: Facts) -> str:
    """How many there are, of how many things."""
    counts = Counter(finding.severity for finding in findings)
    found = ", ".join(counted(counts[each], each.name.lower()) for each in Severity)
    rights = sum(len(queue.rights) for queue in facts.queues) + len(facts.control_rights)
    looked = ", ".join(
        [
            counted(len(facts.queues), "queue"),
            counted(len(facts.tasks) + len(facts.unbound), "task"),
            counted(rights, "right"),
            counted(len(facts.settings), "setting"),
        ]
    )
    return f"{found}; looked at {looked}."


def as_json(findings: list[Finding], facts: Facts, paste: str = "") -> dict[str, Any]:
    """The same, for programs."""
    return {
        "well": is_well(findings),
        "summary": summary(findings, facts),
        "findings": [
            {
                "severity": finding.severity.name.lower(),
                "thing": finding.thing,
                "problem": finding.problem,
                "consequence": finding.consequence,
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
        "rights": {
            queue.name: {name: right.value for name, right in queue.rights.items()} for queue in facts.queues
        },
        "control_rights": {name: right.value for name, right in facts.control_rights.items()},
        **({"to_switch": paste} if paste else {}),
    }


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH_COLUMNS - len(INDENT), break_long_words=False, break_on_hyphens=False)
    return f"\n{INDENT}".join(lines)
