"""`celery -A proj sqs queues create`: creates missing queues and compares others, or prints templates."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import click
from celery import Celery

from celery_sqs_visibility.aws.port import SQS
from celery_sqs_visibility.aws.queues import Queue, when_known
from celery_sqs_visibility.aws.redrive import parse_redrive_policy
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError
from celery_sqs_visibility.operate.app_queues import for_each, queue_names
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    app_of,
    broker_of,
    json_option,
    own_command,
    say,
    show_json,
)
from celery_sqs_visibility.operate.permission_table import Role, policy_document
from celery_sqs_visibility.operate.permissions import ANY, AppResources
from celery_sqs_visibility.operate.templates.cloudformation import cloudformation
from celery_sqs_visibility.operate.templates.stack import Stack
from celery_sqs_visibility.operate.templates.terraform import terraform
from celery_sqs_visibility.policy.provisioning import QueuePlan, plan_queues, why_impossible
from celery_sqs_visibility.policy.queue_names import ARN, FIFO, REDRIVE_POLICY, redrive_policy
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.control_exchanges import EX_NOPERM
from celery_sqs_visibility.transport.routing import max_retries_by_queue

#: The roles whose policies a template has.
ROLES: Final[tuple[Role, ...]] = ("worker", "producer")

#: Maximum length of a managed policy, without white space (IAM and AWS STS quotas, IAM User Guide).
POLICY_CHARACTERS: Final = 6144

ACCOUNT_DIGITS: Final = 12


@dataclass
class QueueResult:
    """The state of a planned queue.

    Attributes:
        queue: SQS's name.
        state: missing, created, as planned, different or updated.
        attributes: those that were set, or would be.
        now: current values of those that differ.
    """

    queue: str
    state: str
    attributes: dict[str, str] = field(default_factory=dict)
    now: dict[str, str | None] = field(default_factory=dict)


class Creation:
    """Creates planned queues that are missing, and compares the others. One thread.

    Args:
        dry_run: change nothing.
        update: set attributes that differ in existing queues.

    Attributes:
        created: the plans of queues that were created so far.
    """

    def __init__(self, sqs: SQS, *, dry_run: bool = False, update: bool = False) -> None:
        self._sqs = sqs
        self._dry_run = dry_run
        self._update = update
        self._arns: dict[str, str] = {}
        self.created: list[QueuePlan] = []

    def run(self, plans: Sequence[QueuePlan]) -> list[QueueResult]:
        """Create and compare the queues, each after its dead-letter queue.

        Raises:
            SQSError: SQS does not answer, or refuses.
        """
        names = [plan.sqs_name for plan in plans]
        present = dict(zip(names, for_each(names, self._present), strict=True))
        wanted = _without_other_letters(plans, present)
        return [self._compare(plan, present[plan.sqs_name]) for plan in wanted]

    def _present(self, name: str) -> dict[str, str] | None:
        try:
            url = self._sqs.queue_url(name)
        except QueueDoesNotExistError:
            return None
        return {**when_known(partial(self._sqs.queue_attributes, url, ["All"])), "url": url}

    def _compare(self, plan: QueuePlan, present: Mapping[str, str] | None) -> QueueResult:
        if present is None:
            return self._create(plan)
        self._arns[plan.sqs_name] = present[ARN]
        wanted = {**plan.attributes, **self._redrive(plan, present)}
        differing = {n: value for n, value in wanted.items() if not same(n, present.get(n), value)}
        now = {name: present.get(name) for name in differing}
        if not differing:
            return QueueResult(plan.sqs_name, "as planned")
        if not self._update or self._dry_run:
            return QueueResult(plan.sqs_name, "different", differing, now)
        self._sqs.set_queue_attributes(present["url"], {n: v for n, v in differing.items() if n != FIFO})
        return QueueResult(plan.sqs_name, "updated", differing, now)

    def _create(self, plan: QueuePlan) -> QueueResult:
        attributes = {**plan.attributes, **self._redrive(plan, {})}
        if self._dry_run:
            return QueueResult(plan.sqs_name, "missing", attributes)
        url = when_known(partial(self._sqs.create_queue, plan.sqs_name, attributes, plan.tags))
        self.created.append(plan)
        self._arns[plan.sqs_name] = when_known(Queue(plan.name, url, self._sqs).arn)
        return QueueResult(plan.sqs_name, "created", attributes)

    def _redrive(self, plan: QueuePlan, present: Mapping[str, str]) -> dict[str, str]:
        """The redrive policy to set. A queue keeps its own dead-letter queue, and a larger count."""
        if plan.dead_letters is None or plan.max_receive_count is None:
            return {}
        arn, receives = self._arns.get(plan.dead_letters, plan.dead_letters), plan.max_receive_count
        if (policy := parse_redrive_policy(present)) is not None:
            arn, receives = policy.dead_letter_arn, max(receives, policy.max_receive_count)
        return {REDRIVE_POLICY: json.dumps(redrive_policy(arn, receives))}


def _without_other_letters(
    plans: Iterable[QueuePlan], present: Mapping[str, Mapping[str, str] | None]
) -> list[QueuePlan]:
    """The plans, less dead-letter queues whose queues have other ones."""
    plans = list(plans)
    needed = set()
    for plan in plans:
        policy = parse_redrive_policy(present[plan.sqs_name] or {})
        if policy is None or policy.name == plan.dead_letters:
            needed.add(plan.dead_letters)
    letters = {plan.dead_letters for plan in plans}
    return [plan for plan in plans if plan.sqs_name not in letters - needed]


def same(name: str, present: str | None, wanted: str) -> bool:
    """Returns whether two values of an attribute are equal, in any form in which SQS may write them."""
    if present is None or present == wanted:
        return present == wanted
    if name == REDRIVE_POLICY:
        return parse_redrive_policy({name: present}) == parse_redrive_policy({name: wanted})
    return bool(_value(present) == _value(wanted))


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in {"true", "false"} else text)
    except ValueError:
        return text


FORMATS: Final[dict[str, Callable[[Stack], str]]] = {
    "cloudformation": cloudformation,
    "terraform": terraform,
}


@click.group(short_help="Create the queues of the app.")
def queues() -> None:
    """Create the queues of the app, or print them for CloudFormation and Terraform."""


@queues.command("create")
@click.argument("names", metavar="[QUEUE]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Show what would be created, without creating it.")
@click.option("--update", is_flag=True, help="Change what differs in queues that exist.")
@click.option(
    "--format",
    "template",
    type=click.Choice(list(FORMATS)),
    help="Print queues, alarms and policies of worker and producer as a template; no request is made.",
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
        raise click.UsageError("Terraform's configuration is not JSON: leave out --json")
    app = app_of(ctx)
    with broker_of(app) as context:
        wanted = list(names) or queue_names(app, context.options)
        plans = plan_queues(wanted, context.options, max_retries_by_queue(app))
        if reason := why_impossible(plans):
            raise CommandError(reason)
        if template is not None:
            stack, notes = _stack(app, context, wanted, plans)
            say(FORMATS[template](stack))
            for note in notes:
                say(f"Note: {note}", err=True)
            return
        results = _create(plans, context, dry_run=dry_run, update=update)
    if as_json:
        show_json([dataclasses.asdict(result) for result in results])
    else:
        for result in results:
            say(_line(result))
    if any(result.state == "different" for result in results):
        operands = ["--", *names] if any(name.startswith("-") for name in names) else names
        command = shlex.join([*shlex.split(own_command()), "queues", "create", "--update", *operands])
        raise CommandError(f"some queues differ from the plan and are unchanged. To change them: {command}")


def _stack(
    app: Celery, broker: BrokerContext, names: list[str], plans: list[QueuePlan]
) -> tuple[Stack, list[str]]:
    """The contents of a template, and notes about its policies."""
    found = AppResources(app, broker, create=False, plans=plans)
    found.add(names)
    policies = {str(role): policy_document(role, found.arns, found.aliases) for role in ROLES}
    notes = list(found.notes)
    for role, document in policies.items():
        if (number := _characters(document)) > POLICY_CHARACTERS:
            notes.append(
                f"the {role}'s policy has about {number} characters, and IAM takes {POLICY_CHARACTERS}: make "
                "several templates, each of some queues, which you name"
            )
    return Stack(plans, policies, {arn: plan.sqs_name for arn, plan in found.planned.items()}), notes


def _characters(document: Mapping[str, Any]) -> int:
    """The length of a policy, once its accounts are filled in."""
    text = json.dumps(document, separators=(",", ":"))
    return len(text) + text.count(f":{ANY}:") * (ACCOUNT_DIGITS - len(ANY))


def _create(
    plans: list[QueuePlan], context: BrokerContext, *, dry_run: bool, update: bool
) -> list[QueueResult]:
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
        sentence = f"{error}. --format prints the queues for whoever may create them"
        raise CommandError(sentence, EX_NOPERM) from error


def _line(result: QueueResult) -> str:
    if result.state == "as planned":
        return f"{result.queue}: exists, as planned"
    facts = []
    for name, value in result.attributes.items():
        if result.state == "different":
            facts.append(f"{name} is {result.now[name]}, planned {value}")
        elif result.state == "updated":
            facts.append(f"{name} was {result.now[name]}, is {value}")
        else:
            facts.append(f"{name}={value}")
    return f"{result.queue}: {result.state}: {', '.join(facts)}"
