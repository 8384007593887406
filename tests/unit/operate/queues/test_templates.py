from __future__ import annotations

import json

import hcl2
import pytest
from click.testing import CliRunner

from celery_sqs_visibility.operate.queues import cloudformation, create_queues, terraform
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues

POLICY = {"Version": "2012-10-17", "Statement": []}


@pytest.fixture
def plans():
    attributes = {"KmsMasterKeyId": "alias/${key}", "SqsManagedSseEnabled": False, "Policy": POLICY}
    options = {"sqs-creation-attributes": attributes, "queue_tags": {"team": 'a "b"'}}
    return plan_queues(["a.b", "a-b.fifo"], Options.parse(options), {"a.b": [20]})


def test_a_template_of_cloudformation_names_each_queue_and_its_dead_letters(plans):
    resources = json.loads(cloudformation(plans))["Resources"]
    assert list(resources) == [
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


@pytest.mark.slow("the parser is slow")
def test_a_configuration_of_terraform_is_hcl(plans):
    text = terraform(plans)
    resources = [next(iter(each.values())) for each in hcl2.loads(text)["resource"]]
    by_label = {label.strip('"'): values for each in resources for label, values in each.items()}
    assert list(by_label) == ["a_b_dead", "a_b", "a_b_dead_fifo", "a_b_fifo"]
    assert by_label["a_b"]["visibility_timeout_seconds"] == 120
    assert by_label["a_b_fifo"]["fifo_queue"] is True
    assert "deadLetterTargetArn = aws_sqs_queue.a_b_dead.arn" in text
    assert '"alias/$${key}"' in text  # a reference otherwise


def test_attributes_of_fifo_queues_are_those_of_fifo_queues_alone():
    given = {"ContentBasedDeduplication": True, "DeduplicationScope": "messageGroup"}
    given |= {"FifoThroughputLimit": "perMessageGroupId", "FifoQueue": True, "DelaySeconds": 5}
    plans = plan_queues(["a", "b.fifo"], Options.parse({"sqs-creation-attributes": given}), {})
    properties = [each["Properties"] for each in json.loads(cloudformation(plans))["Resources"].values()]
    having = {each["QueueName"]: sorted(given.keys() & each.keys()) for each in properties}
    assert having == {
        "a-dead": [],
        "a": ["DelaySeconds"],
        "b-dead.fifo": ["FifoQueue"],
        "b.fifo": sorted(given),
    }
    assert terraform(plans).count("fifo_throughput_limit") == 1


def test_a_label_of_terraform_begins_with_no_digit():
    assert 'resource "aws_sqs_queue" "queue_1a"' in terraform(plan_queues(["1a"], Options.parse({}), {}))


def test_a_configuration_of_terraform_is_not_asked_for_as_json():
    result = CliRunner().invoke(create_queues, ["--format", "terraform", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "leave out --json" in result.output
