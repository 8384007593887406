"""`celery -A proj sqs find` and `held`, of real workers: one that answers, and one that was killed."""

import json
import socket

import boto3
import pytest
from support.commands import invoke
from support.processes import SOON, wait_until
from support.redis_server import RedisServer

from celery_sqs_visibility.operate.invocation import ask

NODE = f"worker1@{socket.gethostname()}"


@pytest.fixture
def site(make_control_site, tmp_path):
    options = {"wait_time_seconds": 1, "visibility_timeout": 300, "shutdown_timeout": 5}
    with RedisServer(tmp_path) as redis:  # of the exclusive tasks of one module
        yield make_control_site(coordination_store=redis.url, **options)


def start(site, module="work", **options):
    worker = site.start(module, concurrency=1, **options)
    wait_until(lambda: ask(site.app, "sqs_held", SOON, [NODE]), SOON, "it to take commands")
    return worker


def sqs(site, *args, status=0):
    """What a command prints, as JSON, which asks one worker."""
    result = invoke(site.app, *args, "-t", "2", "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def finds(site, task_id, *args, status=0):
    return sqs(site, "find", task_id, *args, status=status)


@pytest.mark.own_pool
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_task_is_found_while_it_runs_while_it_waits_and_when_it_is_hidden(site, pool, tmp_path):
    start(site, pool=pool)
    ends = tmp_path / "ends"
    site.send("computed", "hidden", task_id="hidden-id", times=1000)  # comes back after 1, 2, 3 ... seconds
    site.send("number", "number", task_id="number-id")
    site.diary.wait_for("done", key="number")
    site.send("held", "long", str(ends), task_id="long-id")
    site.diary.wait_for("started", key="long")

    found = finds(site, "long-id")
    assert found["verdict"].startswith(f"runs on {NODE} for ")
    assert "hidden for " in found["verdict"]
    (held,) = found["held"]
    assert (held["state"], held["attempt"], held["task"]) == ("running", 1, "work.held")
    assert held["lease_ends"] > held["began"] > held["received"] > 1e9
    assert found["history"] == []  # nothing went wrong

    hidden = finds(site, "hidden-id")
    told = [event["message"] for event in hidden["history"]]
    assert told[:2] == ["task failed", "message hidden"]
    assert all(event["node"] == NODE for event in hidden["history"])

    found = finds(site, "number-id")
    assert found["verdict"].startswith("SUCCESS in the result backend")
    assert [event["message"] for event in found["history"]] == ["task failed", "message hidden"]

    nobody = finds(site, "never-was", status=1)
    assert nobody["verdict"].startswith("not held by the only worker; no dead letter was looked for")
    ends.touch()


def test_what_is_held_says_what_a_signal_would_do(site, tmp_path):
    start(site)
    ends = tmp_path / "ends"
    site.send("held", "long", str(ends), task_id="long-id")
    site.diary.wait_for("started", key="long")
    answer = sqs(site, "held")
    (runs,) = answer["held"]
    assert (runs["task_id"], runs["at_sigterm"], runs["at_sigkill"]) == (
        "long-id",
        "runs again",
        "runs again",
    )
    assert answer["workers"][NODE]["runs_have"] == 5
    assert not sqs(site, "held", "--long", "1h")["held"]
    result = invoke(site.app, "held", "-t", "2")
    assert "SIGTERM now (runs have 5s): 1 runs again." in result.output
    ends.touch()


def test_a_dead_letter_is_found_if_it_is_looked_for(site):
    site.create_queue_with_dead_letters(5)
    start(site)
    site.send("hopeless", "dead", task_id="dead-id")
    letters = site.sqs.get_queue_url(QueueName=f"{site.queue}-dead")["QueueUrl"]
    wait_until(lambda: site.counts(letters) == (1, 0), SOON, "the dead letter")
    assert finds(site, "dead-id")["verdict"].startswith("FAILURE in the result backend")
    found = finds(site, "dead-id", "--dead-letters")
    assert found["verdict"].startswith(f"a dead letter in '{site.queue}-dead' for ")
    assert "Trouble" in found["verdict"]
    assert [event["message"] for event in found["history"]].count("task failed") == 3
    assert site.counts(letters) == (1, 0)  # it was given back
    assert finds(site, "never-was", "--dead-letters", status=1)["letters"] == []


def test_the_log_of_a_worker_that_was_killed_tells_what_it_had(site, emulator, monkeypatch):
    worker = start(site, "logged")
    site.app.send_task("logged.kills_worker", ["dies"], task_id="dies-id")
    worker.wait_exit()
    missing = finds(site, "dies-id", status=1)
    assert missing["verdict"].startswith("no worker answered; no dead letter was looked for")
    found = finds(site, "dies-id", "--logs", worker.log_path)
    assert f"by {NODE}, which does not answer" in found["verdict"]
    assert [event["message"] for event in found["history"]] == ["message received", "task started"]

    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", emulator.url)
    logs = boto3.client("logs", region_name="us-east-1")
    logs.create_log_group(logGroupName=site.queue)
    logs.create_log_stream(logGroupName=site.queue, logStreamName="one")
    lines = [line for line in worker.log.splitlines() if line.startswith("{")]
    events = [{"timestamp": int(site.app.now().timestamp() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=site.queue, logStreamName="one", logEvents=events)
    logs.close()
    asked = finds(site, "dies-id", "--log-group", site.queue, "--logs", worker.log_path)
    assert asked["history"] == found["history"]
    none = finds(site, "dies-id", "--log-group", "nosuch", status=1)
    assert any("log group 'nosuch' cannot be searched" in sentence for sentence in none["unknown"])
