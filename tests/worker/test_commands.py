"""`celery sqs queues`, `doctor`, `message` and `status` as processes, and commands whose reader has gone."""

import json
import os
import signal
import subprocess
import sys

import boto3
import pytest
from support.commands import run_celery, run_json
from support.faults import error
from support.processes import SOON
from support.worker import environment

COMPARED = ("VisibilityTimeout", "MessageRetentionPeriod", "FifoQueue", "KmsMasterKeyId")


@pytest.fixture
def stack(emulator):
    client = boto3.client("cloudformation", endpoint_url=emulator.url)
    yield lambda name, body: client.create_stack(StackName=name, TemplateBody=body)
    client.close()


def queues_of(sqs, prefix):
    """Each queue's attributes, by its name without the prefix."""
    found = {}
    for url in sqs.list_queues(QueueNamePrefix=prefix).get("QueueUrls", []):
        of_queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        policy = json.loads(of_queue.get("RedrivePolicy", "{}"))
        dead = policy.get("deadLetterTargetArn", "").rpartition(":")[2].removeprefix(prefix)
        values = {name: of_queue.get(name) for name in COMPARED}
        tags = sqs.list_queue_tags(QueueUrl=url).get("Tags")
        found[url.rpartition("/")[2].removeprefix(prefix)] = (
            values,
            dead,
            policy.get("maxReceiveCount"),
            tags,
        )
    return found


@pytest.fixture
def policy_of(emulator):
    """`policy_of(role)`: the statements of that role's policy at IAM, by their id."""
    client = boto3.client("iam", endpoint_url=emulator.url)

    def read(role):
        (policy,) = [
            each for each in client.list_policies(Scope="Local")["Policies"] if role in each["PolicyName"]
        ]
        version = client.get_policy_version(PolicyArn=policy["Arn"], VersionId=policy["DefaultVersionId"])
        return {each["Sid"]: each for each in version["PolicyVersion"]["Document"]["Statement"]}

    yield read
    client.close()


def test_the_app_s_queues_are_made_directly_or_by_cloudformation(make_site, sqs, stack, policy_of):
    def config(prefix):
        options = {
            "queue_name_prefix": prefix,
            "queue_tags": {"team": "x"},
            "sqs-creation-attributes": {"KmsMasterKeyId": "alias/key"},
            "queues": {"own.fifo": {"visibility_timeout": 77}},
        }
        return make_site({"task_default_queue": "own"}, **options).config

    direct, by_stack = config("direct-"), config("stack-")
    made = run_json(direct, "queues", "create", module="letters")
    assert [(each["queue"], each["state"]) for each in made] == [
        ("direct-own-dead", "created"),
        ("direct-own", "created"),
        ("direct-own-dead.fifo", "created"),
        ("direct-own.fifo", "created"),
    ]
    template = run_celery(by_stack, "sqs", "queues", "create", "--format", "cloudformation", module="letters")
    stack("queues", template.stdout)
    assert queues_of(sqs, "stack-") == queues_of(sqs, "direct-")
    for role, sid, names in [
        ("Worker", "Consume", ["own", "own.fifo"]),
        ("Worker", "DeadLetters", ["own-dead", "own-dead.fifo"]),
        ("Producer", "Publish", ["own", "own.fifo"]),
    ]:
        on = [arn.rpartition(":")[2] for arn in policy_of(role)[sid]["Resource"]]
        assert on == [f"stack-{name}" for name in names]
    assert queues_of(sqs, "direct-")["own"][1:3] == ("own-dead", 7)
    again = run_celery(direct, "sqs", "queues", "create", module="letters")
    assert (again.returncode, again.stdout.count("as planned")) == (0, 4), again.stdout + again.stderr
    assert run_celery(by_stack, "sqs", "queues", "create", module="letters").returncode == 0


def test_a_worker_that_starts_first_makes_the_queues_as_the_command_plans_them(make_site):
    site = make_site()
    worker = site.start()
    assert f"dead letters go to '{site.queue}-dead' after" in worker.log
    assert "WARNING" not in worker.log
    told = run_celery(site.config, "sqs", "queues", "create", site.queue)
    assert (told.returncode, told.stdout.count("exists, as planned")) == (0, 2), told.stdout + told.stderr


def found(report):
    return [(finding["severity"], finding["thing"]) for finding in report["findings"]]


def contents(site, *urls):
    """What a probe could change: messages by their state, and how often they were received."""
    return [site.counts(url) for url in urls], site.sqs.list_queues(QueueNamePrefix=site.queue)["QueueUrls"]


def test_queues_settings_and_permissions_are_checked_and_nothing_is_changed(make_site):
    site = make_site(wait_time_seconds=0)
    dead = site.create_queue_with_dead_letters(3)
    site.send("quick", "a")
    before = contents(site, site.url, dead)
    site.proxy.clear()
    report = run_json({**site.config, "worker_send_task_events": True}, "doctor")
    things = found(report)
    assert not report["well"]
    assert things[0] == ("error", f"queue '{site.queue}'")
    assert "of its 4 attempts never run" in report["findings"][0]["consequence"]
    assert ("warning", f"dead-letter queue '{site.queue}-dead'") in things
    assert ("note", "setting worker_send_task_events") in things
    assert things[-1] == ("note", "permissions")
    assert report["rights"][site.queue]["sqs:DeleteMessage"] == "allowed"
    assert contents(site, site.url, dead) == before
    (message,) = site.sqs.receive_message(
        QueueUrl=site.url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_what_is_missing_is_said_in_lines_for_people(make_site):
    site = make_site()
    site.create_queue()
    site.proxy.inject(error("AccessDenied", 403), "DeleteMessageBatch")
    done = run_celery(site.config, "sqs", "doctor", "--queue", site.queue, "--queue", "nowhere")
    assert done.returncode == 1, done.stderr
    words = " ".join(done.stdout.split())
    assert f"ERROR queue '{site.queue}': sqs:DeleteMessage is not allowed to these credentials" in words
    assert "it has no dead-letter queue, and when_exhausted is 'delete'" in words
    assert "WARNING queue 'nowhere': SQS has no queue 'nowhere' (for" in words
    assert "; looked at 2 queues, " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("transport", "arguments", "words"),
    [
        ("sqs", [], "celery -A work sqs doctor --from-kombu says what changes"),
        ("celery_sqs_visibility", ["--from-kombu"], "leave out --from-kombu"),
        ("memory", ["--from-kombu"], "is memory, and --from-kombu is for kombu's 'sqs'"),
    ],
)
def test_the_wrong_broker_is_one_sentence(transport, arguments, words):
    done = run_celery({"broker_transport": transport}, "sqs", "doctor", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--base64"]], ids=["plain", "base64"])
def test_a_worker_runs_what_was_pasted(make_site, options):
    site = make_site()
    url = site.create_queue()
    args = ["message", "work.quick", "--args", '["pasted"]', *options]
    printed = run_celery(site.config, "sqs", *args)
    site.sqs.send_message(QueueUrl=url, MessageBody=printed.stdout.strip())
    request = run_json(site.config, *args, "--countdown", "1")
    site.sqs.send_message(QueueUrl=url, **request)
    assert request["DelaySeconds"] == 1
    site.start()
    site.diary.wait_for("started", key="pasted", count=2)
    assert site.queue in printed.stderr
    assert json.dumps("pasted") not in printed.stderr


def test_watching_ends_well_at_ctrl_c(make_site):
    site = make_site()
    site.create_queue()
    command = [sys.executable, "-m", "celery", "-A", "work", "sqs", "status", "--json", "--watch", "0.1"]
    watching = subprocess.Popen(command, env=environment(site.config), stdout=subprocess.PIPE, text=True)
    try:
        documents = 0
        text = ""
        while documents < 2:
            text += watching.stdout.readline() or pytest.fail("it has ended")
            if text.rstrip().endswith("\n}"):
                assert json.loads(text)["queues"][0]["queue"] == site.queue
                documents, text = documents + 1, ""
        watching.send_signal(signal.SIGINT)
        assert watching.wait(SOON) == 0
    finally:
        watching.kill()
        watching.stdout.close()
        watching.wait()


BIG = "x" * 300_000


def run_unread(site, *args, lines=0):
    """Run `celery sqs *args`, read so many lines of its output, and go; its standard error and status."""
    env = environment(site.config, PYTHONUNBUFFERED="")
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "celery", "-A", "letters", "sqs", *args]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=env) as process:
        os.close(writer)
        with os.fdopen(reader) as output:
            for _ in range(lines):
                assert output.readline()
        return process.communicate(timeout=60)[1], process.returncode


@pytest.fixture
def site(make_site):
    site = make_site(wait_time_seconds=1)
    dead = site.create_queue_with_dead_letters(9)
    site.sqs.send_message(QueueUrl=dead, MessageBody=BIG)
    return site


@pytest.mark.parametrize("lines", [0, 1], ids=["nothing read", "a line read"])
@pytest.mark.parametrize(
    "command",
    [
        "dead-letters list QUEUE",
        "doctor",
        "permissions worker",
        "status --watch 1",
    ],
)
def test_a_command_whose_reader_has_gone_ends_without_a_traceback(site, command, lines):
    said, status = run_unread(site, *command.replace("QUEUE", site.queue).split(), lines=lines)
    assert "Traceback" not in said
    assert "BrokenPipeError" not in said
    assert status in {0, 1}


def test_a_large_letter_is_shown_to_a_reader_of_one_line(site):
    identity = site.sqs.receive_message(
        QueueUrl=site.sqs.get_queue_url(QueueName=f"{site.queue}-dead")["QueueUrl"], VisibilityTimeout=0
    )["Messages"][0]["MessageId"]
    said, status = run_unread(site, "dead-letters", "show", site.queue, identity, lines=1)
    assert (said, status) == ("", 1)
