"""`celery sqs audit`: the command."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from typing import IO, Final

import click

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatchLogs
from celery_sqs_visibility.operate.audit.account import Account, Auditor
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    counted,
    duration,
    errors_as_sentences,
    json_option,
    log_group_option,
    say,
    show_json,
    since_option,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

#: How many broken rules are shown; the rest is counted.
MAX_FINDINGS: Final = 20


@click.command()
@click.argument("logs", nargs=-1, type=click.File(errors="replace"), metavar="LOG...")
@log_group_option
@since_option
@click.option("--summary", is_flag=True, help="Print only counts, without names and ids, to be shared.")
@click.option(
    "--tolerance",
    type=duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="How late lines may be, and how far the workers' clocks may differ.",
)
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    logs: tuple[IO[str], ...],
    *,
    log_group: str | None,
    since: float,
    summary: bool,
    tolerance: float,
    as_json: bool,
) -> None:
    """Account for every message in JSON logs: how it ended, and why it ran more than once.

    LOG is a file of `log_json()`'s lines; - is stdin. Give the logs of all workers of a queue. Logs that are
    missing are counted by the receives that no line records.

    Exit status: 0 no rule is broken, and each further run has a reason; 1 else.
    """
    auditor = Auditor(tolerance)
    if not (logs or log_group):
        raise click.UsageError("name files of JSON log lines, - for stdin, or --log-group")
    for log in logs:
        auditor.read(log)
    if log_group:
        with errors_as_sentences():
            now = SYSTEM_CLOCK.wall()
            auditor.read(CloudWatchLogs(ClientSettings()).lines_of_messages(log_group, now - since, now))
    account = auditor.account()
    if not account.messages:
        raise CommandError(
            f"no line tells of a message, of {counted(account.passed_over_lines, 'line')}: workers write "
            "such lines after celery_sqs_visibility.log_json()"
        )
    if as_json or summary:
        versions = {"version": metadata.version("celery-sqs-visibility"), "python": platform.python_version()}
        told = {**versions, **vars(account), "findings": [vars(each) for each in account.findings]}
        if summary:
            del told["findings"]  # they have names and ids
        show_json(told)
    else:
        for sentence in sentences(account):
            say(sentence)
    ctx.exit(0 if account.is_well else 1)


def sentences(account: Account) -> Iterator[str]:
    """The account as sentences."""
    yield f"{counted(account.messages.total(), 'message')}: {_counts(account.messages)}."
    more = account.more_runs.total()
    reasons = f" ({_counts(account.more_runs)})" if more else ""
    yield f"{counted(account.runs, 'run')}, {more} of them not the first{reasons}."
    if account.unlogged_receives:
        yield f"{counted(account.unlogged_receives, 'receive')} by workers whose log is not here."
    rules = account.broken_rules
    yield f"Broken rules: {_counts(rules)}." if rules else "No rule is broken."
    for each in account.findings[:MAX_FINDINGS]:
        yield f"  {each.message_id} (task {each.task_id}): {each.rule}; {each.workers}"
    if len(account.findings) > MAX_FINDINGS:
        yield f"  and {len(account.findings) - MAX_FINDINGS} more: --json has all"
    if account.passed_over_lines:
        yield f"{counted(account.passed_over_lines, 'line')} passed over, which tell of no message."


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())
