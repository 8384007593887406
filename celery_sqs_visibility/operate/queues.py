"""`celery -A proj sqs queues create`: missing queues created, others compared, or all as templates."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import click

from celery_sqs_visibility.aws.port import SQS
from celery_sqs_visibility.aws.queues import Queue, when_known
from celery_sqs_visibility.aws.redrive import parse_redrive_policy
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError
from celery_sqs_visibility.operate.app_queues import for_each, queue_names
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    NotPermittedError,
    app_of,
    broker_of,
    json_option,
    own_command,
    say,
    show_json,
)
from celery_sqs_visibility.policy.provisioning import QueuePlan, plan_queues, why_impossible
from celery_sqs_visibility.policy.queue_names import ARN, FIFO, REDRIVE_POLICY, redrive_policy
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.routing import max_retries_by_queue


@dataclass
class QueueResult:
    """The state of a planned queue.

    Attributes:
        queue: SQS's name.
        state: missing, created, as planned, different or updated.
        attributes: those that were set, or would be.
        now: the present values of those that differ.
    """

    queue: str
    state: str
    attributes: dict[str, str] = field(default_factory=dict)
    now: dict[str, str | None] = field(default_factory=dict)


class Creation:
    """Creates the planned queues that are missing, and compares the others. One thread.

    Args:
        sqs: where the queues are.
        dry_run: change nothing.
        update: set the attributes that differ in queues that exist.

    Attributes:
        created: the plans of the queues that it has created so far.
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
        """The planned redrive policy. A queue keeps its own dead-letter queue, and a larger count."""
        if plan.dead_letters is None or plan.max_receive_count is None:
            return {}
        arn, receives = self._arns.get(plan.dead_letters, plan.dead_letters), plan.max_receive_count
        if (policy := parse_redrive_policy(present)) is not None:
            arn, receives = policy.dead_letter_arn, max(receives, policy.max_receive_count)
        return {REDRIVE_POLICY: json.dumps(redrive_policy(arn, receives))}


def _without_other_letters(
    plans: Iterable[QueuePlan], present: Mapping[str, Mapping[str, str] | None]
) -> list[QueuePlan]:
    """The plans without dead-letter queues whose queues have others."""
    plans = list(plans)
    needed = set()
    for plan in plans:
        policy = parse_redrive_policy(present[plan.sqs_name] or {})
        if policy is None or policy.name == plan.dead_letters:
            needed.add(plan.dead_letters)
    letters = {plan.dead_letters for plan in plans}
    return [plan for plan in plans if plan.sqs_name not in letters - needed]


def same(name: str, present: str | None, wanted: str) -> bool:
    """Returns whether two values of an attribute are equal, as SQS may write them."""
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


#: SQS's attributes to the arguments of Terraform's aws_sqs_queue.
TERRAFORM: Final = {
    "VisibilityTimeout": "visibility_timeout_seconds",
    "MessageRetentionPeriod": "message_retention_seconds",
    "MaximumMessageSize": "max_message_size",
    "DelaySeconds": "delay_seconds",
    "ReceiveMessageWaitTimeSeconds": "receive_wait_time_seconds",
    "FifoQueue": "fifo_queue",
    "ContentBasedDeduplication": "content_based_deduplication",
    "DeduplicationScope": "deduplication_scope",
    "FifoThroughputLimit": "fifo_throughput_limit",
    "KmsMasterKeyId": "kms_master_key_id",
    "KmsDataKeyReusePeriodSeconds": "kms_data_key_reuse_period_seconds",
    "SqsManagedSseEnabled": "sqs_managed_sse_enabled",
    "RedrivePolicy": "redrive_policy",
    "RedriveAllowPolicy": "redrive_allow_policy",
    "Policy": "policy",
}


def cloudformation(plans: Sequence[QueuePlan]) -> str:
    """A template, in JSON."""
    resources: dict[str, Any] = {}
    ids = _distinct([_logical_id(plan.sqs_name) for plan in plans])
    by_name = {plan.sqs_name: each for plan, each in zip(plans, ids, strict=True)}
    for plan in plans:
        values = {name: _typed(name, value) for name, value in plan.attributes.items()}
        policy = values.pop("Policy", None)
        properties = {"QueueName": plan.sqs_name, **values}
        if plan.dead_letters is not None:
            arn = {"Fn::GetAtt": [by_name[plan.dead_letters], "Arn"]}
            properties[REDRIVE_POLICY] = redrive_policy(arn, plan.max_receive_count)
        if plan.tags:
            properties["Tags"] = [{"Key": key, "Value": value} for key, value in plan.tags.items()]
        own = by_name[plan.sqs_name]
        resources[own] = {"Type": "AWS::SQS::Queue", "Properties": properties}
        if policy is not None:
            of_policy = {"Queues": [{"Ref": own}], "PolicyDocument": policy}
            resources[f"{own}Policy"] = {"Type": "AWS::SQS::QueuePolicy", "Properties": of_policy}
    return json.dumps({"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}, indent=2)


def terraform(plans: Sequence[QueuePlan]) -> str:
    """Resources of the provider hashicorp/aws, in HCL."""
    labels = _distinct([_label(plan.sqs_name) for plan in plans])
    by_name = {plan.sqs_name: label for plan, label in zip(plans, labels, strict=True)}
    return "\n".join(_terraform(plan, by_name) for plan in plans).rstrip("\n")


def _terraform(plan: QueuePlan, labels: Mapping[str, str]) -> str:
    values = {"name": _text(plan.sqs_name)}
    for name, value in plan.attributes.items():
        values[TERRAFORM.get(name, name)] = _hcl(name, value)
    if plan.dead_letters is not None:
        values["redrive_policy"] = (
            "jsonencode({\n"
            f"    deadLetterTargetArn = aws_sqs_queue.{labels[plan.dead_letters]}.arn\n"
            f"    maxReceiveCount     = {plan.max_receive_count}\n"
            "  })"
        )
    if plan.tags:
        inner = "".join(f"    {_text(key)} = {_text(value)}\n" for key, value in plan.tags.items())
        values["tags"] = f"{{\n{inner}  }}"
    short = max(len(name) for name, value in values.items() if "\n" not in value)  # as `terraform fmt` does
    widths = {name: 0 if "\n" in value else short for name, value in values.items()}
    lines = "".join(f"  {name.ljust(widths[name])} = {value}\n" for name, value in values.items())
    return f'resource "aws_sqs_queue" "{labels[plan.sqs_name]}" {{\n{lines}}}\n'


def _hcl(name: str, value: str) -> str:
    typed = _typed(name, value)
    return _text(value) if isinstance(typed, (str, dict)) else json.dumps(typed)


def _text(value: str) -> str:
    """A quoted template without interpolation."""
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


def _typed(name: str, value: str) -> Any:
    if name in {"RedrivePolicy", "RedriveAllowPolicy", "Policy"}:  # JSON at SQS
        return json.loads(value)
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    return int(value) if value.isdigit() and name != "KmsMasterKeyId" else value


def _label(name: str) -> str:
    """A name of HCL: it begins with no digit and no hyphen."""
    label = re.sub(r"\W", "_", name)
    return f"queue_{label}" if label[:1].isdigit() else label


def _logical_id(name: str) -> str:
    """Letters and digits, as CloudFormation takes them."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name)) + "Queue"


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with numbers behind repeated ones."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return distinct


FORMATS: Final[dict[str, Callable[[Sequence[QueuePlan]], str]]] = {
    "cloudformation": cloudformation,
    "terraform": terraform,
}


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
        results = _create(plans, context, dry_run=dry_run, update=update)
    if as_json:
        show_json([dataclasses.asdict(result) for result in results])
    else:
        for result in results:
            say(_line(result))
    if any(result.state == "different" for result in results):
        operands = ["--", *names] if any(name.startswith("-") for name in names) else names
        command = shlex.join([*shlex.split(own_command()), "queues", "create", "--update", *operands])
        raise CommandError(f"some queues differ from the plan, and are left so. To change them: {command}")


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
        raise NotPermittedError(f"{error}. --format prints the queues for whoever may create them") from error


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
