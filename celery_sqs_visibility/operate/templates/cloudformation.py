"""A template for CloudFormation, in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
from celery_sqs_visibility.policy.queue_names import REDRIVE_POLICY, redrive_policy

TOPIC: Final = "AlarmTopic"
HAS_TOPIC: Final = f"Has{TOPIC}"

#: The topic that alarms are sent to; without one they only have a state.
SENDING: Final = {
    "Parameters": {TOPIC: {"Type": "String", "Default": "", "Description": "ARN of an SNS topic for alarms"}},
    "Conditions": {HAS_TOPIC: {"Fn::Not": [{"Fn::Equals": [{"Ref": TOPIC}, ""]}]}},
}


def cloudformation(stack: Stack) -> str:
    """The template, in JSON."""
    by_name = labels(stack.plans, lambda name: f"{_words(name)}Queue")
    resources: dict[str, Any] = {}
    for plan in stack.plans:
        resources |= _queue(plan, by_name)
    for plan in stack.plans:
        for alarm in alarms_of(plan):
            logical_id = f"{by_name[plan.sqs_name]}{_words(alarm.kind)}Alarm"
            resources[logical_id] = _alarm(alarm, plan, by_name[plan.sqs_name])
    references = {arn: {"Fn::GetAtt": [by_name[name], "Arn"]} for arn, name in stack.arns.items()}
    policies = {f"{_words(role)}Policy": document for role, document in stack.policies.items()}
    for own, document in policies.items():
        properties = {"PolicyDocument": referring(document, references)}
        resources[own] = {"Type": "AWS::IAM::ManagedPolicy", "Properties": properties}
    outputs = {"Outputs": {own: {"Value": {"Ref": own}} for own in policies}} if policies else {}
    return json.dumps(
        {"AWSTemplateFormatVersion": "2010-09-09", **SENDING, "Resources": resources, **outputs}, indent=2
    )


def _queue(plan: QueuePlan, by_name: Mapping[str, str]) -> dict[str, Any]:
    values = {name: typed(name, value) for name, value in plan.attributes.items()}
    policy = values.pop("Policy", None)
    properties = {"QueueName": plan.sqs_name, **values}
    if plan.dead_letters is not None:
        arn = {"Fn::GetAtt": [by_name[plan.dead_letters], "Arn"]}
        properties[REDRIVE_POLICY] = redrive_policy(arn, plan.max_receive_count)
    if plan.tags:
        properties["Tags"] = [{"Key": key, "Value": value} for key, value in plan.tags.items()]
    own = by_name[plan.sqs_name]
    resources = {own: {"Type": "AWS::SQS::Queue", "Properties": properties}}
    if policy is not None:
        of_policy = {"Queues": [{"Ref": own}], "PolicyDocument": policy}
        resources[f"{own}Policy"] = {"Type": "AWS::SQS::QueuePolicy", "Properties": of_policy}
    return resources


def _alarm(alarm: Alarm, plan: QueuePlan, queue: str) -> dict[str, Any]:
    properties = {
        "AlarmName": f"{plan.sqs_name}-{alarm.kind}",
        "AlarmDescription": alarm.description,
        **_watched(alarm, queue),
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "Threshold": alarm.threshold,
        "EvaluationPeriods": alarm.periods,
        "TreatMissingData": alarm.missing,
        "AlarmActions": {"Fn::If": [HAS_TOPIC, [{"Ref": TOPIC}], {"Ref": "AWS::NoValue"}]},
    }
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}


def _watched(alarm: Alarm, queue: str) -> dict[str, Any]:
    """The metric that is compared, or the metrics of an expression."""
    dimensions = [{"Name": "QueueName", "Value": {"Fn::GetAtt": [queue, "QueueName"]}}]
    metrics: list[dict[str, Any]] = []
    for own, (name, statistic) in alarm.metrics.items():
        metric = {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": dimensions}
        if not alarm.expression:
            return {**metric, "Period": PERIOD_SECONDS, "Statistic": statistic}
        watched = {"Metric": metric, "Period": PERIOD_SECONDS, "Stat": statistic}
        metrics.append({"Id": own, "MetricStat": watched, "ReturnData": False})
    return {"Metrics": [*metrics, {"Id": "value", "Expression": alarm.expression, "ReturnData": True}]}


def _words(name: str) -> str:
    """Letters and digits, as CloudFormation takes them."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))
