import json

import boto3
from botocore.validate import ParamValidator

from celery_sqs_visibility.operate.templates.cloudformation import cloudformation
from celery_sqs_visibility.operate.templates.stack import Stack
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues

POLICY = {"Version": "2012-10-17", "Statement": []}


def of_type(template, kind):
    return {
        name: each["Properties"]
        for name, each in template["Resources"].items()
        if each["Type"] == f"AWS::{kind}"
    }


def test_a_template_names_each_queue_and_its_dead_letters(stack):
    resources = json.loads(cloudformation(stack))["Resources"]
    assert [name for name in resources if not name.endswith(("Alarm", "WorkerPolicy"))] == [
        "ABDeadQueue",
        "ABQueue",
        "ABQueuePolicy",
        "ABDeadFifoQueue",
        "ABFifoQueue",
        "ABFifoQueuePolicy",
    ]
    queue = resources["ABQueue"]["Properties"]
    assert queue["RedrivePolicy"] == {
        "deadLetterTargetArn": {"Fn::GetAtt": ["ABDeadQueue", "Arn"]},
        "maxReceiveCount": 24,
    }
    assert (queue["VisibilityTimeout"], queue["SqsManagedSseEnabled"]) == (120, False)
    assert queue["Tags"] == [{"Key": "team", "Value": 'a "b"'}]
    assert resources["ABFifoQueue"]["Properties"]["FifoQueue"] is True
    assert resources["ABQueuePolicy"]["Properties"]["PolicyDocument"] == POLICY


def test_attributes_of_fifo_queues_are_those_of_fifo_queues_alone():
    given = {"ContentBasedDeduplication": True, "DeduplicationScope": "messageGroup"}
    given |= {"FifoThroughputLimit": "perMessageGroupId", "FifoQueue": True, "DelaySeconds": 5}
    plans = plan_queues(["a", "b.fifo"], Options.parse({"sqs-creation-attributes": given}), {})
    queues = of_type(json.loads(cloudformation(Stack(plans))), "SQS::Queue").values()
    having = {each["QueueName"]: sorted(given.keys() & each.keys()) for each in queues}
    assert having == {
        "a-dead": [],
        "a": ["DelaySeconds"],
        "b-dead.fifo": ["FifoQueue"],
        "b.fifo": sorted(given),
    }


def resolved(value):
    """A value as CloudFormation hands it on, with a topic for the alarms."""
    if isinstance(value, list):
        return [resolved(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "Fn::If" in value:
        return resolved(value["Fn::If"][1])
    if value.keys() & {"Ref", "Fn::GetAtt"}:
        return str(value)
    return {name: resolved(each) for name, each in value.items()}


def test_cloudwatch_takes_each_alarm_and_it_watches_the_queue_of_the_template(stack):
    template = json.loads(cloudformation(stack))
    shape = boto3.client("cloudwatch", region_name="us-east-1").meta.service_model.operation_model(
        "PutMetricAlarm"
    )
    alarms = of_type(template, "CloudWatch::Alarm")
    for properties in alarms.values():
        report = ParamValidator().validate(resolved(properties), shape.input_shape)
        assert not report.has_errors(), report.generate_report()
    assert list(alarms) == [
        "ABDeadQueueDeadLettersAlarm",
        "ABQueueInFlightAlarm",
        "ABQueueNotConsumedAlarm",
        "ABDeadFifoQueueDeadLettersAlarm",
        "ABFifoQueueInFlightAlarm",
        "ABFifoQueueNotConsumedAlarm",
    ]
    watched = [{"Name": "QueueName", "Value": {"Fn::GetAtt": ["ABQueue", "QueueName"]}}]
    in_flight, idle = alarms["ABQueueInFlightAlarm"], alarms["ABQueueNotConsumedAlarm"]
    assert (in_flight["Threshold"], in_flight["Dimensions"]) == (96_000, watched)
    *metrics, value = idle["Metrics"]
    assert all(each["MetricStat"]["Metric"]["Dimensions"] == watched for each in metrics)
    assert [each["ReturnData"] for each in idle["Metrics"]] == [False, False, False, True]
    assert all(each["Id"] in value["Expression"] for each in metrics)


def test_alarms_go_to_the_topic_that_is_given(stack):
    template = json.loads(cloudformation(stack))
    assert template["Parameters"]["AlarmTopic"]["Default"] == ""
    (condition,) = template["Conditions"]
    for properties in of_type(template, "CloudWatch::Alarm").values():
        assert properties["AlarmActions"]["Fn::If"] == [
            condition,
            [{"Ref": "AlarmTopic"}],
            {"Ref": "AWS::NoValue"},
        ]


def test_a_policy_names_the_queues_of_the_template(stack):
    template = json.loads(cloudformation(stack))
    (policy,) = of_type(template, "IAM::ManagedPolicy").values()
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert statement["Resource"] == [
        {"Fn::GetAtt": ["ABQueue", "Arn"]},
        "arn:aws:kms:us-east-1:*:key/${key}",
    ]
    assert template["Outputs"] == {"WorkerPolicy": {"Value": {"Ref": "WorkerPolicy"}}}
    assert "Outputs" not in json.loads(cloudformation(Stack(stack.plans)))
