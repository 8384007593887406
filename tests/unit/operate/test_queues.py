import json

import pytest
from click.testing import CliRunner
from support.factories import queue

from celery_sqs_visibility.aws import queues
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.errors import QueueDoesNotExistError
from celery_sqs_visibility.operate.queues import Creation, create_queues, same
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
    graveyard = queue(sqs, "graveyard")
    queue(sqs, "orders", letters=graveyard, most=receives, VisibilityTimeout="120")
    assert states(run(sqs, "orders", update=True)) == {"orders": state}
    assert policy(sqs, "orders")["deadLetterTargetArn"] == graveyard.arn()
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


def test_a_configuration_of_terraform_is_not_asked_for_as_json():
    result = CliRunner().invoke(create_queues, ["--format", "terraform", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "leave out --json" in result.output


@pytest.mark.parametrize("template", ["cloudformation", "terraform"])
def test_a_template_has_the_policies_and_makes_no_request(run_on, sqs, template):
    done = run_on(
        sqs, create_queues, "--format", template, "orders", broker_transport_options={"metrics": ["emf"]}
    )
    assert (done.exit_code, done.stderr, sqs.calls) == (0, "", [])
    for action in ("sqs:ReceiveMessage", "sqs:SendMessage", "cloudwatch:GetMetricData"):
        assert action in done.stdout
    assert "arn:aws:sqs" not in done.stdout  # the queues are named by references


def test_a_policy_of_cloudformation_is_of_the_queues_that_are_named(run_on, sqs):
    done = run_on(sqs, create_queues, "--format", "cloudformation", "orders", "mails")
    resources = json.loads(done.stdout)["Resources"]
    for role, kind in [("Worker", "Consume"), ("Producer", "Publish")]:
        document = resources[f"{role}Policy"]["Properties"]["PolicyDocument"]
        (statement,) = [each for each in document["Statement"] if each["Sid"] == kind]
        assert statement["Resource"] == [
            {"Fn::GetAtt": ["OrdersQueue", "Arn"]},
            {"Fn::GetAtt": ["MailsQueue", "Arn"]},
        ]


@pytest.mark.parametrize(("number", "is_too_long"), [(20, False), (40, True)])
def test_a_policy_that_iam_does_not_take_is_told(run_on, sqs, number, is_too_long):
    names = [f"queue-{each}" for each in range(number)]
    done = run_on(sqs, create_queues, "--format", "terraform", *names)
    assert ("Note: the worker's policy has about" in done.stderr) is is_too_long
    assert "the producer's" not in done.stderr
