"""`celery sqs queues create`, as a process: what it makes, and what its template makes."""

from __future__ import annotations

import json

import boto3
import pytest
from support.commands import run_celery, run_json

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


def test_the_app_s_queues_are_made_directly_or_by_cloudformation(make_site, sqs, stack):
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
    assert queues_of(sqs, "direct-")["own"][1:3] == ("own-dead", 7)
    again = run_celery(direct, "sqs", "queues", "create", module="letters")
    assert (again.returncode, again.stdout.count("as planned")) == (0, 4), again.stdout + again.stderr
    assert run_celery(by_stack, "sqs", "queues", "create", module="letters").returncode == 0


def test_with_predefined_queues_none_is_created(make_site):
    site = make_site(predefined_queues={"q": {"url": "https://sqs.us-east-1.amazonaws.com/123456789012/q"}})
    refused = run_celery(site.config, "sqs", "queues", "create", module="letters")
    assert (refused.returncode, "predefined_queues" in refused.stderr) == (1, True)


def test_a_queue_without_dead_letters_is_told_with_the_command_that_gives_it_some(make_site):
    site = make_site()
    site.create_queue()
    told = run_celery(site.config, "sqs", "queues", "create", site.queue)
    command = f"celery -A work sqs queues create --update {site.queue}"
    assert (told.returncode, told.stderr.strip().endswith(f"To change them: {command}")) == (1, True), (
        told.stderr
    )
    done = run_celery(site.config, *command.split()[3:])
    assert (done.returncode, "updated: " in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_worker_that_starts_first_makes_the_queues_as_the_command_plans_them(make_site):
    site = make_site()
    worker = site.start()
    assert f"dead letters go to '{site.queue}-dead' after" in worker.log
    assert "WARNING" not in worker.log
    told = run_celery(site.config, "sqs", "queues", "create", site.queue)
    assert (told.returncode, told.stdout.count("exists, as planned")) == (0, 2), told.stdout + told.stderr
