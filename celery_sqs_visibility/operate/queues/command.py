"""`celery -A proj sqs queues create`."""

from __future__ import annotations

import dataclasses
from typing import Final

import click

from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.operate.app_queues import max_retries_by_queue, queue_names
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    NotPermittedError,
    app_of,
    broker_of,
    json_option,
    say,
    show_json,
)
from celery_sqs_visibility.operate.provisioning import QueuePlan, plan_queues, why_impossible
from celery_sqs_visibility.operate.queues.creation import Creation, Finding
from celery_sqs_visibility.operate.queues.templates import FORMATS
from celery_sqs_visibility.transport.broker_context import BrokerContext


@click.group(short_help="Make the queues of the app.")
def queues() -> None:
    """Make the queues of the app, or print them for CloudFormation and Terraform."""


@queues.command("create")
@click.argument("names", metavar="[QUEUE]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Tell what would be created, and create nothing.")
@click.option("--update", is_flag=True, help="Change what differs in queues that exist.")
@click.option(
    "--format",
    "template",
    type=click.Choice(list(FORMATS)),
    help="Print the queues as a template, and make no request.",
)
@json_option
@click.pass_context
def create_queues(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    dry_run: bool,
    update: bool,
    template: str | None,
    as_json: bool,
) -> None:
    """Create the queues that are missing, with dead-letter queues and redrive policies.

    Without QUEUE all queues of the app. A dead letter is kept for 14 days, and a message is received as
    often as the tasks' max_retries and deploys take. A queue that exists is left as it is, and its
    differences are told (exit status 1), unless --update is given.
    """
    if as_json and template == "terraform":
        raise click.UsageError("Terraform's configuration is no JSON: leave out --json")
    app = app_of(ctx)
    with broker_of(app) as context:
        wanted = list(names) or queue_names(app, context.options)
        plans = plan_queues(wanted, context.options, max_retries_by_queue(app))
        if reason := why_impossible(plans):
            raise CommandError(reason)
        if template is not None:
            say(FORMATS[template](plans))
            return
        findings = _see_to(plans, context, dry_run=dry_run, update=update)
    if as_json:
        show_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            say(_line(finding))
    if any(finding.state == "different" for finding in findings):
        raise CommandError("some queues differ from the plan: --update changes them")


def _see_to(plans: list[QueuePlan], context: BrokerContext, *, dry_run: bool, update: bool) -> list[Finding]:
    options = context.options
    if options.predefined_queues or options.queue_owner:
        option = "predefined_queues" if options.predefined_queues else "queue_owner"
        raise CommandError(
            f"with the option {option} queues are made elsewhere, and none is created: --format prints them "
            "for whoever makes them"
        )
    try:
        return Creation(context.queues.sqs, dry_run=dry_run, update=update).run(plans)
    except AccessDeniedError as error:
        raise NotPermittedError(f"{error}. --format prints the queues for whoever may create them") from error


#: An attribute's value at SQS and the plan's, by the state.
_CHANGES: Final = {"different": "{} is {}, planned {}", "updated": "{} was {}, is {}"}


def _line(finding: Finding) -> str:
    if finding.state == "as planned":
        return f"{finding.queue}: exists, as planned"
    facts = [f"{name}={value}" for name, value in finding.attributes.items()]
    if sentence := _CHANGES.get(finding.state):
        facts = [sentence.format(n, finding.now[n], value) for n, value in finding.attributes.items()]
    return f"{finding.queue}: {finding.state}: {', '.join(facts)}"
