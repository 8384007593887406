"""A configuration for Terraform's provider hashicorp/aws, in HCL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from celery_sqs_visibility.operate.templates.stack import (
    NAMESPACE,
    PERIOD_SECONDS,
    Alarm,
    Stack,
    alarms_of,
    labels,
    referring,
    typed,
)
from celery_sqs_visibility.policy.provisioning import QueuePlan
from celery_sqs_visibility.policy.queue_names import redrive_policy

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


class Expression(str):
    """An expression of HCL; any other `str` is a text."""

    __slots__ = ()


class Block(dict[str, Any]):
    """The contents of a nested block, which is no argument."""


#: Where alarms are sent to; without it they only have a state.
ALARM_ACTIONS: Final = Block(
    description="ARNs that alarms are sent to, as of an SNS topic",
    type=Expression("list(string)"),
    default=[],
)


def terraform(stack: Stack) -> str:
    """The configuration, in HCL."""
    by_name = labels(stack.plans, _label)
    blocks = [("variable", "alarm_actions", ALARM_ACTIONS)]
    blocks += [("aws_sqs_queue", by_name[plan.sqs_name], _queue(plan, by_name)) for plan in stack.plans]
    for plan in stack.plans:
        for alarm in alarms_of(plan):
            label = by_name[plan.sqs_name]
            own = f"{label}_{_label(alarm.kind)}"
            blocks.append(("aws_cloudwatch_metric_alarm", own, _alarm(alarm, plan, label)))
    references = {arn: _attribute(by_name[name], "arn") for arn, name in stack.arns.items()}
    for role, document in stack.policies.items():
        policy = json_encoded(referring(document, references))
        blocks.append(("aws_iam_policy", role, Block(name_prefix=f"celery-{role}-", policy=policy)))
        value = Expression(f"aws_iam_policy.{role}.arn")
        blocks.append(("output", f"policy_of_{role}", Block(value=value)))
    return "\n".join(_top(kind, label, contents) for kind, label, contents in blocks).rstrip("\n")


def _top(kind: str, label: str, contents: Block) -> str:
    header = f'{kind} "{label}"' if kind in {"variable", "output"} else f'resource "{kind}" "{label}"'
    return f"{header} {_hcl(contents)}\n"


def _queue(plan: QueuePlan, by_name: Mapping[str, str]) -> Block:
    values = Block(name=plan.sqs_name)
    for name, value in plan.attributes.items():
        kind = typed(name, value)
        values[TERRAFORM.get(name, name)] = value if isinstance(kind, dict) else kind
    if plan.dead_letters is not None:
        arn = _attribute(by_name[plan.dead_letters], "arn")
        values["redrive_policy"] = json_encoded(redrive_policy(arn, plan.max_receive_count))
    if plan.tags:
        values["tags"] = dict(plan.tags)
    return values


def _alarm(alarm: Alarm, plan: QueuePlan, queue: str) -> Block:
    return Block(
        alarm_name=f"{plan.sqs_name}-{alarm.kind}",
        alarm_description=alarm.description,
        comparison_operator="GreaterThanOrEqualToThreshold",
        threshold=alarm.threshold,
        evaluation_periods=alarm.periods,
        treat_missing_data=alarm.missing,
        alarm_actions=Expression("var.alarm_actions"),
        **_watched(alarm, queue),
    )


def _watched(alarm: Alarm, queue: str) -> dict[str, Any]:
    """The metric that is compared, or the metrics of an expression."""
    dimensions = {"QueueName": _attribute(queue, "name")}
    queries = []
    for own, (name, statistic) in alarm.metrics.items():
        metric = Block(namespace=NAMESPACE, metric_name=name, period=PERIOD_SECONDS, dimensions=dimensions)
        if not alarm.expression:
            return {**metric, "statistic": statistic}
        queries.append(Block(id=own, metric=Block(stat=statistic, **metric)))
    return {"metric_query": [*queries, Block(id="value", expression=alarm.expression, return_data=True)]}


def _attribute(queue: str, name: str) -> Expression:
    return Expression(f"aws_sqs_queue.{queue}.{name}")


def json_encoded(document: Mapping[str, Any]) -> Expression:
    """The document as JSON, made by Terraform, which knows the ARNs in it."""
    return Expression(f"jsonencode({_hcl(document)})")


def _hcl(value: Any) -> str:
    """The value in HCL, laid out as `terraform fmt` does."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return f"{{\n{_indented(_members(value))}}}"
    if isinstance(value, list) and value:
        elements = [_hcl(each) for each in value]
        alone = len(elements) == 1 and "\n" not in elements[0]
        return (
            f"[{elements[0]}]" if alone else f"[\n{_indented(''.join(f'{e},{chr(10)}' for e in elements))}]"
        )
    return json.dumps(value)


def _members(values: Mapping[str, Any]) -> str:
    """The arguments of a block, or the members of an object, a line each; then nested blocks."""
    arguments, blocks = [], []
    for name, value in values.items():
        nested = value if isinstance(value, list) else [value]
        if nested and all(isinstance(each, Block) for each in nested):
            blocks += [f"\n{name} {_hcl(each)}\n" for each in nested]
        else:
            key = name if re.fullmatch(r"[A-Za-z_]\w*", name) else _text(name)
            arguments.append((key, _hcl(value)))
    lines = []
    for is_long, members in groupby(arguments, lambda member: "\n" in member[1]):
        group = list(members)
        width = 0 if is_long else max(len(key) for key, _ in group)
        lines += [f"{key.ljust(width)} = {text}\n" for key, text in group]
    return "".join(lines + blocks)


def _indented(text: str) -> str:
    return re.sub(r"(?m)^(?=.)", "  ", text)


def _text(value: str) -> str:
    """A quoted template without interpolation."""
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


def _label(name: str) -> str:
    """A name of HCL: it begins with no digit and no hyphen."""
    label = re.sub(r"\W", "_", name)
    return f"queue_{label}" if label[:1].isdigit() else label
