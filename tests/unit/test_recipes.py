"""The recipes for ECS and Kubernetes are valid, and fit our commands and options."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import botocore.session
import click
import pytest
import yaml
from botocore.validate import ParamValidator
from celery.bin.worker import worker

from celery_sqs_visibility.operate.health.probe import parse
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.worker.drain import GRACE_VARIABLE, RESERVE_SECONDS, shutdown_times

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASK_DEFINITION = json.loads((EXAMPLES / "ecs/task-definition.json").read_text())
POD = yaml.safe_load((EXAMPLES / "kubernetes/worker.yaml").read_text())["spec"]["template"]["spec"]
ECS, KUBERNETES = TASK_DEFINITION["containerDefinitions"][0], POD["containers"][0]
PROBES = {name: KUBERNETES[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")}

#: Python starts within this time, though the container has little CPU.
PYTHON_SECONDS = 2


def test_the_task_definition_is_one_to_ecs():
    ecs = botocore.session.Session().get_service_model("ecs")
    shape = ecs.operation_model("RegisterTaskDefinition").input_shape
    assert not ParamValidator().validate(TASK_DEFINITION, shape).has_errors()


@pytest.mark.parametrize("container", [ECS, KUBERNETES], ids=["ecs", "kubernetes"])
def test_the_worker_starts_with_options_that_celery_has(container):
    celery, _, app, command, *options = container["command"]
    assert (celery, app, command) == ("celery", "proj", "worker")
    worker.make_parser(click.Context(worker)).parse_args(options)


@pytest.mark.parametrize(
    ("container", "seconds", "variables"),
    [
        (ECS, ECS["stopTimeout"], ECS["environment"]),
        (KUBERNETES, POD["terminationGracePeriodSeconds"], KUBERNETES["env"]),
    ],
    ids=["ecs", "kubernetes"],
)
def test_running_tasks_are_handed_back_before_sigkill(container, seconds, variables, monkeypatch, caplog):
    for variable in variables:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = runpy.run_path(str(EXAMPLES / "proj/settings.py"))
    assert float({each["name"]: each["value"] for each in variables}[GRACE_VARIABLE]) == seconds
    stated = Options.parse(settings["broker_transport_options"]).shutdown_timeout
    assert shutdown_times(stated) == (seconds - RESERVE_SECONDS, seconds)
    assert not caplog.messages


def test_ecs_asks_whether_the_worker_lives_since_it_replaces_what_is_unhealthy():
    kind, command, *options = ECS["healthCheck"]["command"]
    assert (kind, command) == ("CMD", "celery-sqs-health")
    assert not parse(options).ready
    assert parse(options).timeout + PYTHON_SECONDS <= ECS["healthCheck"]["timeout"]


@pytest.mark.parametrize("name", PROBES)
def test_kubernetes_restarts_what_does_not_live_and_waits_for_what_is_not_ready(name):
    command, *options = PROBES[name]["exec"]["command"]
    assert command == "celery-sqs-health"
    assert parse(options).ready == (name == "readinessProbe")
    assert parse(options).timeout + PYTHON_SECONDS <= PROBES[name]["timeoutSeconds"]


def test_the_socket_has_a_place_that_can_be_written_and_is_the_containers_own():
    assert KUBERNETES["securityContext"]["readOnlyRootFilesystem"]
    (mount,) = KUBERNETES["volumeMounts"]
    assert (mount["mountPath"], POD["volumes"]) == ("/tmp", [{"name": mount["name"], "emptyDir": {}}])


@pytest.mark.parametrize("path", ["ecs/task-definition.json", "kubernetes/worker.yaml"])
def test_the_page_shows_an_excerpt(path):
    page = (EXAMPLES.parent / "docs/deploys.md").read_text()
    block = page.split(f"](../examples/{path})", 1)[1].split("```")[1].split("\n", 1)[1]
    assert block in (EXAMPLES / path).read_text()


#: In place of the AWS CLI: it writes down how it was called, and answers for `get-queue-url`.
AWS = """#!{python}
import json, sys
with open("calls", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
print("https://sqs.eu-central-1.amazonaws.com/123456789012/proj")
"""


def test_a_bucket_is_connected_by_commands_that_aws_takes(tmp_path, monkeypatch):
    page = (EXAMPLES.parent / "docs/aws-events.md").read_text()
    block = re.search(r"^## Connect a bucket.*?^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "aws").write_text(AWS.format(python=sys.executable))
    (tmp_path / "aws").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    subprocess.run(["sh", "-eu", "-c", block], cwd=tmp_path, check=True)
    _, policy, notification = map(json.loads, (tmp_path / "calls").read_text().splitlines())
    given = {
        "QueueUrl": after(policy, "--queue-url"),
        "Attributes": of_file(tmp_path, policy),
    }
    assert_valid("sqs", "SetQueueAttributes", given)
    (statement,) = json.loads(given["Attributes"]["Policy"])["Statement"]
    given = {
        "Bucket": after(notification, "--bucket"),
        "NotificationConfiguration": of_file(tmp_path, notification),
    }
    assert_valid("s3", "PutBucketNotificationConfiguration", given)
    (queue,) = given["NotificationConfiguration"]["QueueConfigurations"]
    assert statement["Resource"] == queue["QueueArn"]
    assert statement["Condition"]["ArnLike"]["aws:SourceArn"] == f"arn:aws:s3:::{given['Bucket']}"


def of_file(directory, words):
    """What the last argument refers to."""
    return json.loads((directory / words[-1].removeprefix("file://")).read_text())


def after(words, option):
    return words[words.index(option) + 1]


def assert_valid(service, operation, parameters):
    model = botocore.session.Session().get_service_model(service)
    shape = model.operation_model(operation).input_shape
    assert not ParamValidator().validate(parameters, shape).has_errors()
