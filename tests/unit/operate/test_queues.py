from __future__ import annotations

import json

import hcl2
import pytest
from click.testing import CliRunner

from celery_sqs_visibility.aws import queues
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.errors import QueueDoesNotExistError
from celery_sqs_visibility.operate.queues import Creation, cloudformation, create_queues, same, terraform
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues


@pytest.fixture
def sqs():
    return FakeSQS()


def run(sqs, *queues, dry_run=False, update=False, **options):
    plans = plan_queues(queues, Options.parse(options), {"orders": [10]})
    findings = Creation(sqs, dry_run=dry_run, update=update).run(plans)
    return {finding.queue: finding for finding in findings}


def states(findings):
    return {queue: finding.state for queue, finding in findings.items()}


def attributes(sqs, name):
    return sqs.queue_attributes(sqs.queue_url(name), ["All"])


def policy(sqs, name):
    return json.loads(attributes(sqs, name)["RedrivePolicy"])


def test_queues_are_created_once_with_their_dead_letters(sqs):
    assert states(run(sqs, "orders")) == {"orders-dead": "created", "orders": "created"}
    assert policy(sqs, "orders")["maxReceiveCount"] == 14
    assert policy(sqs, "orders")["deadLetterTargetArn"].endswith(":orders-dead")
    assert attributes(sqs, "orders-dead")["MessageRetentionPeriod"] == "1209600"
    assert states(run(sqs, "orders")) == {"orders-dead": "as planned", "orders": "as planned"}


def test_sqs_may_not_know_a_queue_in_its_first_second(sqs, monkeypatch):
    monkeypatch.setattr(queues, "NEW_QUEUE_PAUSES_SECONDS", (0,))
    sqs.fail_next("GetQueueAttributes", QueueDoesNotExistError("The specified queue does not exist."))
    assert states(run(sqs, "orders")) == {"orders-dead": "created", "orders": "created"}
    sqs.fail_next("GetQueueAttributes", QueueDoesNotExistError("The specified queue does not exist."))
    assert states(run(sqs, "orders")) == {"orders-dead": "as planned", "orders": "as planned"}


def test_a_dry_run_changes_nothing(sqs):
    assert states(run(sqs, "orders", dry_run=True)) == {"orders-dead": "missing", "orders": "missing"}
    sqs.create_queue("orders", {}, {})
    assert states(run(sqs, "orders", dry_run=True, update=True))["orders"] == "different"
    assert not [action for action, _ in sqs.calls if action.startswith("Set")]


def test_what_differs_is_told_and_changed_on_request_only(sqs):
    sqs.create_queue("orders", {"VisibilityTimeout": "30"}, {})
    told = run(sqs, "orders")["orders"]
    assert (told.state, told.now) == ("different", {"VisibilityTimeout": "30", "RedrivePolicy": None})
    assert states(run(sqs, "orders", update=True))["orders"] == "updated"
    assert states(run(sqs, "orders"))["orders"] == "as planned"


@pytest.mark.parametrize(("receives", "state", "then"), [(3, "updated", 14), (50, "as planned", 50)])
def test_a_queue_keeps_its_own_dead_letter_queue(sqs, receives, state, then):
    arn = sqs.queue_attributes(sqs.create_queue("graveyard", {}, {}), ["QueueArn"])["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": str(receives)})
    sqs.create_queue("orders", {"VisibilityTimeout": "120", "RedrivePolicy": redrive}, {})
    assert states(run(sqs, "orders", update=True)) == {"orders": state}
    assert policy(sqs, "orders")["deadLetterTargetArn"] == arn
    assert int(policy(sqs, "orders")["maxReceiveCount"]) == then


@pytest.mark.parametrize(
    ("name", "present", "wanted", "is_same"),
    [
        ("SqsManagedSseEnabled", "True", "true", True),
        ("Policy", '{"a": 1,"b":2}', '{"b": 2, "a": 1}', True),
        ("KmsMasterKeyId", "alias/a", "alias/b", False),
        ("DelaySeconds", None, "0", False),
    ],
)
def test_values_are_compared_not_their_spelling(name, present, wanted, is_same):
    assert same(name, present, wanted) == is_same


def test_a_line_says_what_was_and_what_is(run_on, sqs):
    def run(*args):
        return run_on(sqs, create_queues, "q", *args).stdout.splitlines()[-1]

    assert run("--dry-run").startswith("q: missing: VisibilityTimeout=120")
    assert run().startswith("q: created: VisibilityTimeout=120")
    assert run() == "q: exists, as planned"
    sqs.set_queue_attributes(sqs.queue_url("q"), {"VisibilityTimeout": "33"})
    assert run() == "q: different: VisibilityTimeout is 33, planned 120"
    assert run("--update") == "q: updated: VisibilityTimeout was 33, is 120"


def test_what_sqs_cannot_have_is_told_before_anything_is_created(run_on, sqs):
    done = run_on(sqs, create_queues, "orders", "x" * 81)
    assert done.exit_code == 1
    assert "SQS can have no queue" in done.stderr
    assert "CreateQueue" not in {action for action, _ in sqs.calls}


def test_the_command_for_a_queue_whose_name_begins_with_a_hyphen_takes_it_as_a_name(run_on, sqs):
    sqs.create_queue("-orders", {}, {})
    told = run_on(sqs, create_queues, "--", "-orders")
    assert told.stderr.rstrip().endswith("queues create --update -- -orders")


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
