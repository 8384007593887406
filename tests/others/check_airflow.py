"""Apache Airflow's CeleryExecutor on this transport, set up as docs/frameworks.md says, for `make others`.

What each scene shows is looked up in SQS, in Airflow's database, and in what the tasks have noted.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import boto3
import psutil
import pytest
from others.airflow_site import HEARTBEAT_TIMEOUT, PROGRAM, Airflow, page_settings, variables
from support.processes import SOON, free_port
from support.proxy import FaultProxy

REGION = "eu-west-1"  # the page's
IGNORED = "Task already running elsewhere, ignoring redelivered message"
PROVIDER = "airflow.providers.celery.executors"
SHOW = Path(__file__).with_name("airflow_settings.py")
CELERY = PROGRAM.with_name("celery")
HEALTH = PROGRAM.with_name("celery-sqs-health")


@pytest.fixture(scope="module")
def proxy(emulator):
    with FaultProxy(emulator.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def airflow(proxy, tmp_path_factory):
    with Airflow(tmp_path_factory.mktemp("airflow"), proxy.url) as airflow:
        yield airflow


@pytest.fixture
def is_empty(emulator):
    client = boto3.client("sqs", region_name=REGION, endpoint_url=emulator.url)
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def is_empty(queue):
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return set(answer["Attributes"].values()) == {"0"}

    yield is_empty
    client.close()


def noted(airflow, run):
    """Each event of a run's tasks, with the attempt."""
    return [(entry["event"], entry["attempt"]) for entry in airflow.diary.entries(run=run)]


def kill(worker):
    """As a lost machine: the worker, its pool, and Airflow's processes below it."""
    processes = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    for process in processes:
        process.kill()
    worker.stop()


def receive_counts(proxy, queue):
    """How often each received message had been received."""
    answers = [call.response.get("Messages", []) for call in proxy.calls("ReceiveMessage", queue)]
    return [int(each["Attributes"]["ApproximateReceiveCount"]) for messages in answers for each in messages]


def test_tasks_succeed_are_retried_and_outlast_the_visibility_timeout(airflow, proxy, is_empty):
    worker = airflow.worker("default", concurrency=4)
    run = airflow.trigger("mixed", seconds=12)
    assert airflow.wait_for_end(run) == "success"
    assert airflow.attempts(run) == {
        "first": [(1, "success")],
        "second": [(1, "success")],
        "failing_twice": [(1, "failed"), (2, "failed"), (3, "success")],
        "lasting": [(1, "success")],
    }
    entries = airflow.diary.entries(run=run, task="lasting")
    assert [entry["event"] for entry in entries] == ["started", "ended"]
    assert entries[1]["time"] - entries[0]["time"] > 2 * 5
    proxy.wait_for(lambda _: is_empty("default"), timeout=SOON)
    assert receive_counts(proxy, "default") == [1] * 6  # an attempt is a message, and none came back
    assert proxy.count("ChangeMessageVisibility") + proxy.count("ChangeMessageVisibilityBatch") > 0
    worker.stop()


def test_a_task_whose_worker_is_lost_before_it_begins_runs_as_the_first_attempt(airflow, proxy, is_empty):
    # Airflow asks its API server whether the task may begin. Nothing listens at this one's address.
    nowhere = f"http://127.0.0.1:{free_port()}/execution/"
    lost = airflow.worker("unbegun", env=variables({"core": {"execution_api_server_url": nowhere}}))
    run = airflow.trigger("unbegun")
    lost.wait_for_log("Executing workload in Celery", SOON)
    kill(lost)
    worker = airflow.worker("unbegun")
    assert airflow.wait_for_end(run) == "success"
    assert airflow.attempts(run) == {"lasting": [(1, "success")]}
    assert noted(airflow, run) == [("started", 1), ("ended", 1)]
    proxy.wait_for(lambda _: is_empty("unbegun"), timeout=SOON)
    assert max(receive_counts(proxy, "unbegun")) == 2
    assert proxy.count("SendMessage", "unbegun") == 1
    worker.stop()


def test_a_task_whose_worker_is_lost_is_airflows_to_retry(airflow, proxy, is_empty):
    lost = airflow.worker("killed")
    run = airflow.trigger("killed", seconds=6)
    airflow.diary.wait_for("started", run=run, timeout=SOON)
    worker = airflow.worker("killed")
    kill(lost)
    worker.wait_for_log(IGNORED, SOON)
    proxy.wait_for(lambda _: is_empty("killed"), timeout=SOON)
    assert airflow.attempts(run) == {"lasting": [(1, "running")]}  # nobody runs it, and no message is left
    assert airflow.wait_for_end(run) == "success"
    assert airflow.attempts(run) == {"lasting": [(1, "failed"), (2, "success")]}
    assert noted(airflow, run) == [("started", 1), ("started", 2), ("ended", 2)]
    begun = [entry["time"] for entry in airflow.diary.entries("started", run=run)]
    assert begun[1] - begun[0] > HEARTBEAT_TIMEOUT
    assert proxy.count("SendMessage", "killed") == 2
    worker.stop()


def test_a_deploy_lets_running_tasks_end_and_loses_none(airflow, proxy, is_empty):
    url = {"celery": {"broker_url": "celery-sqs-visibility://", "extra_celery_config": "{}"}}  # the other way
    old = airflow.worker("deploy", env=variables(url))
    running = airflow.trigger("deploy", seconds=6)
    airflow.diary.wait_for("started", run=running, timeout=SOON)
    waiting = airflow.trigger("deploy")
    new = airflow.worker("deploy", env=variables(url))
    old.signal_main(signal.SIGTERM)
    assert old.wait_exit() == 0
    for run in (running, waiting):
        assert airflow.wait_for_end(run) == "success"
        assert airflow.attempts(run) == {"lasting": [(1, "success")]}
        assert noted(airflow, run) == [("started", 1), ("ended", 1)]
    assert IGNORED not in new.log
    proxy.wait_for(lambda _: is_empty("deploy"), timeout=SOON)
    new.stop()


def test_a_task_beyond_shutdown_timeout_is_airflows_to_retry(airflow, proxy, is_empty):
    old = airflow.worker("deadline", shutdown_timeout=1)
    run = airflow.trigger("deadline", seconds=12)
    airflow.diary.wait_for("started", run=run, timeout=SOON)
    new = airflow.worker("deadline")
    old.signal_main(signal.SIGTERM)
    assert old.wait_exit() == 0
    assert "orphaned, handed back" in old.log
    new.wait_for_log(IGNORED, SOON)
    proxy.wait_for(lambda _: is_empty("deadline"), timeout=SOON)
    assert airflow.wait_for_end(run) == "success"
    assert airflow.attempts(run) == {"lasting": [(1, "failed"), (2, "success")]}
    # The process of Airflow's task is not the pool's: where no container ends, it goes on to its own end.
    assert sorted(noted(airflow, run)) == [("ended", 1), ("ended", 2), ("started", 1), ("started", 2)]
    new.stop()


def test_without_remote_control_a_task_stuck_in_its_queue_is_published_anew_all_the_same(
    airflow, proxy, is_empty
):
    airflow.restart_scheduler(queued_timeout=8)
    worker, run = stuck(airflow, "unrevoked")
    assert airflow.scheduler.log.count("dropped a command to workers, since remote control is off") == 1
    assert "Invalid auth token" in worker.log  # the first message is older than its token
    assert "celery@" in airflow.run("-n", "celery@%h", program=HEALTH)
    proxy.wait_for(lambda _: is_empty("unrevoked"), timeout=SOON)
    assert noted(airflow, run) == [("started", 1), ("ended", 1)]
    worker.stop()


def test_without_remote_control_commands_that_ask_workers_end_with_its_sentence(airflow):
    for command in (["list-workers"], ["worker", "--skip-serve-logs", "-H", "named"]):
        assert "RemoteControlError: remote control is off here" in airflow.run("celery", *command, status=1)


def test_with_remote_control_a_task_stuck_in_its_queue_is_revoked(airflow, proxy, is_empty):
    airflow.restart_scheduler(queued_timeout=8, remote_control=True)
    worker, run = stuck(airflow, "stuck", "-H", "named@here", remote_control=True)
    assert "Discarding revoked task: execute_workload" in worker.log
    assert "Invalid auth token" not in worker.log
    proxy.wait_for(lambda _: is_empty("stuck"), timeout=SOON)
    assert noted(airflow, run) == [("started", 1), ("ended", 1)]
    listed = airflow.run("celery", "list-workers", remote_control=True)
    assert re.search(r"^named@here +\| stuck *$", listed, re.MULTILINE)
    ping = ["--app", f"{PROVIDER}.celery_executor.app", "inspect", "ping", "-d", "named@here"]
    assert "named@here: OK" in airflow.run(*ping, program=CELERY, remote_control=True)
    worker.stop()


def stuck(airflow, queue, *options, **transport):
    """A task waits behind one of 14 s: Airflow takes it for stuck, and publishes it anew."""
    worker = airflow.worker(queue, *options, **transport)
    running = airflow.trigger(queue, seconds=14)
    airflow.diary.wait_for("started", run=running, timeout=SOON)
    waiting = airflow.trigger(queue)
    airflow.scheduler.wait_for_log("Task stuck in queued; will try to requeue", SOON)
    for run in (running, waiting):
        assert airflow.wait_for_end(run) == "success"
        assert airflow.attempts(run) == {"lasting": [(1, "success")]}
    return worker, waiting


@pytest.fixture
def settings_of(tmp_path):
    """The settings of Airflow's Celery app, and its options as the transport reads them."""

    def settings_of(cfg):
        (tmp_path / "airflow.cfg").write_text(cfg)
        env = {"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(SHOW.parents[1])}
        env |= {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        printed = subprocess.run(
            [sys.executable, str(SHOW)], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        if printed.returncode:
            raise RuntimeError(printed.stderr)
        return json.loads(printed.stdout.splitlines()[-1])

    return settings_of


def test_the_pages_settings_select_this_transport_and_the_provider_sets_the_rest(settings_of):
    found = settings_of(page_settings())
    assert found["transport"] == "celery_sqs_visibility.transport.transport"
    assert found["options"] == {"region": "eu-west-1", "visibility_timeout": 120.0}
    assert found["settings"].pop("result_backend").startswith("db+sqlite:///")  # Airflow's database
    assert found["settings"] == {
        "task_acks_late": True,
        "task_default_queue": "default",
        "worker_concurrency": 16,
        "worker_enable_remote_control": True,
        "worker_prefetch_multiplier": 1,
    }
    by_url = page_settings().replace("broker_url = sqs://", "broker_url = celery-sqs-visibility://")
    by_url = re.sub("extra_celery_config.*", "", by_url)
    assert settings_of(by_url) == settings_of(page_settings())


def test_without_a_visibility_timeout_the_providers_day_is_sqss_longest(settings_of):
    cfg = page_settings().replace("visibility_timeout = 120", "")
    assert settings_of(cfg)["options"]["visibility_timeout"] == 43_200
    by_url = cfg.replace("broker_url = sqs://", "broker_url = celery-sqs-visibility://")
    assert "visibility_timeout" not in settings_of(by_url)["options"]  # our own default, 120 s


def test_mappings_are_json_but_for_queues(settings_of):
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/default"
    mappings = {
        "predefined_queues": {"default": {"url": url}},
        "queue_tags": {"team": "data"},
        "client-config": {"read_timeout": 70},
    }
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in mappings.items())
    options = settings_of(page_settings() + lines)["options"]
    assert list(options["predefined_queues"]) == ["default"]
    assert options["queue_tags"] == {"team": "data"}
    assert options["client_config"] == {"read_timeout": 70}

    queues = {"reports*": {"visibility_timeout": 600}}
    with pytest.raises(RuntimeError, match=r"OptionError: .*queues"):
        settings_of(page_settings() + f"queues = {json.dumps(queues)}\n")
    extra = {"broker_transport": "celery_sqs_visibility", "broker_transport_options": {"queues": queues}}
    cfg = re.sub(
        "(extra_celery_config =).*", lambda found: f"{found[1]} {json.dumps(extra)}", page_settings()
    )
    assert settings_of(cfg)["options"] == {"queues": queues}  # instead of the section's
