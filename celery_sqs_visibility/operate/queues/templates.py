"""Planned queues as a template of CloudFormation, or as a configuration of Terraform."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from celery_sqs_visibility.operate.provisioning import QueuePlan
from celery_sqs_visibility.policy.queue_attributes import REDRIVE_POLICY, redrive_policy

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

#: Attributes that are JSON at SQS.
DOCUMENTS: Final = frozenset({"RedrivePolicy", "RedriveAllowPolicy", "Policy"})


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
    if name in DOCUMENTS:
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
    """The names, made different by numbers where they are not."""
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
