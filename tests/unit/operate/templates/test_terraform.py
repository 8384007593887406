import re

import hcl2
import pytest

from celery_sqs_visibility.operate.templates.stack import Stack
from celery_sqs_visibility.operate.templates.terraform import terraform
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues


def resources_of(text):
    """The contents of resources, by type and label."""
    parsed = [
        (kind.strip('"'), each) for found in hcl2.loads(text)["resource"] for kind, each in found.items()
    ]
    return {(kind, label.strip('"')): values for kind, each in parsed for label, values in each.items()}


@pytest.mark.slow("the parser is slow")
def test_a_configuration_is_hcl(stack):
    text = terraform(stack)
    resources = resources_of(text)
    assert [label for kind, label in resources if kind == "aws_sqs_queue"] == [
        "a_b_dead",
        "a_b",
        "a_b_dead_fifo",
        "a_b_fifo",
    ]
    assert resources["aws_sqs_queue", "a_b"]["visibility_timeout_seconds"] == 120
    assert resources["aws_sqs_queue", "a_b_fifo"]["fifo_queue"] is True
    assert "deadLetterTargetArn = aws_sqs_queue.a_b_dead.arn" in text
    assert '"alias/$${key}"' in text  # a reference otherwise
    in_flight = resources["aws_cloudwatch_metric_alarm", "a_b_in_flight"]
    assert in_flight["threshold"] == 96_000
    queries = resources["aws_cloudwatch_metric_alarm", "a_b_fifo_not_consumed"]["metric_query"]
    assert [each["id"].strip('"') for each in queries] == ["waiting", "held", "deleted", "value"]
    assert ("aws_iam_policy", "worker") in resources


def block(text, header):
    return re.search(rf"^{re.escape(header)} {{\n(.*?)^}}", text, re.MULTILINE | re.DOTALL)[1]


def test_an_alarm_watches_the_queue_of_the_configuration(stack):
    text = terraform(stack)
    assert block(text, 'resource "aws_cloudwatch_metric_alarm" "a_b_dead_dead_letters"').splitlines()[2:] == [
        '  comparison_operator = "GreaterThanOrEqualToThreshold"',
        "  threshold           = 1",
        "  evaluation_periods  = 1",
        '  treat_missing_data  = "ignore"',
        "  alarm_actions       = var.alarm_actions",
        '  namespace           = "AWS/SQS"',
        '  metric_name         = "ApproximateNumberOfMessagesVisible"',
        "  period              = 300",
        "  dimensions = {",
        "    QueueName = aws_sqs_queue.a_b_dead.name",
        "  }",
        '  statistic = "Maximum"',
    ]
    assert "default     = []" in block(text, 'variable "alarm_actions"')


def test_a_policy_names_the_queues_of_the_configuration(stack):
    text = terraform(stack)
    assert block(text, 'resource "aws_iam_policy" "worker"').splitlines() == [
        '  name_prefix = "celery-worker-"',
        "  policy = jsonencode({",
        '    Version = "2012-10-17"',
        "    Statement = [",
        "      {",
        '        Effect = "Allow"',
        '        Action = ["sqs:SendMessage"]',
        "        Resource = [",
        "          aws_sqs_queue.a_b.arn,",
        '          "arn:aws:kms:us-east-1:*:key/$${key}",',
        "        ]",
        "        Condition = {",
        '          "ForAnyValue:StringEquals" = {',
        '            "kms:ResourceAliases" = ["alias/a"]',
        "          }",
        "        }",
        "      },",
        "    ]",
        "  })",
    ]
    assert block(text, 'output "policy_of_worker"') == "  value = aws_iam_policy.worker.arn\n"


def test_throughput_is_of_fifo_queues_alone():
    given = {"FifoThroughputLimit": "perMessageGroupId", "FifoQueue": True, "DelaySeconds": 5}
    plans = plan_queues(["a", "b.fifo"], Options.parse({"sqs-creation-attributes": given}), {})
    assert terraform(Stack(plans)).count("fifo_throughput_limit") == 1


def test_a_label_begins_with_no_digit():
    plans = plan_queues(["1a"], Options.parse({}), {})
    assert 'resource "aws_sqs_queue" "queue_1a"' in terraform(Stack(plans))
