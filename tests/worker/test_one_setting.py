"""One setting switches workers, beat and producers over, one process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.app import CONFIG_VARIABLE, behind
from support.worker import IMPORT_PATHS

PRODUCER = """
from celery import Celery
import sys

app = Celery("producer")
app.conf.broker_transport = "celery_sqs_visibility"
app.conf.broker_transport_options = {"region": "us-east-1"}
app.conf.task_default_queue = sys.argv[1]
app.send_task("work.quick", ["from a script"])
assert "celery_sqs_visibility.worker.install" in sys.modules
assert "celery_sqs_visibility.worker.request" not in sys.modules
assert "pycurl" not in sys.modules
"""


def environment(config):
    paths = os.pathsep.join(map(str, IMPORT_PATHS))
    return {**os.environ, "PYTHONPATH": paths, CONFIG_VARIABLE: json.dumps(config)}


def run(*command):
    how = {"env": environment({}), "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([sys.executable, *command], check=False, **how)


def test_a_producer_needs_the_setting_and_nothing_of_ours(make_site):
    site = make_site()
    site.start()
    # broker_url is absent; the endpoint is in the environment, as for any boto3 program.
    result = run("-c", PRODUCER, site.queue)
    assert result.returncode == 0, result.stderr
    site.diary.wait_for("started", key="from a script")


def test_a_worker_without_broker_url_finds_sqs_as_any_boto3_program_does(make_site):
    site = make_site()
    site.send("quick", "a")
    worker = site.start()
    site.diary.wait_for("started", key="a")
    assert "localhost" not in [call.request.get("QueueUrl", "") for call in site.proxy.calls()]
    assert "No hostname was supplied" not in worker.log


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_the_message_of_an_unknown_task_is_kept_with_the_one_setting(make_site, pool):
    site = make_site(error_visibility_timeout=60)
    site.create_queue()
    site.app.send_task("work.nobody_knows", ("a",))
    worker = site.start(pool=pool)
    worker.wait_for_log("work.nobody_knows")
    site.send("quick", "after")
    site.diary.wait_for("started", key="after")
    site.proxy.wait_for(lambda _: site.changes() == [60])
    site.proxy.wait_for(lambda _: site.counts() == (0, 1))
    assert "message is no task for this worker" in worker.log


def test_beat_needs_nothing_else(make_site, tmp_path):
    site = make_site({"beat_schedule": {"each": {"task": "work.quick", "schedule": 1, "args": ["by beat"]}}})
    site.start()
    beat = ["-m", "celery", "-A", "work", "beat", "-s", str(tmp_path / "schedule"), "--pidfile="]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *beat], env=environment(site.config), **quiet) as process:
        try:
            site.diary.wait_for("started", key="by beat")
        finally:
            process.terminate()


@pytest.mark.parametrize("encoded", [True, False])
def test_messages_of_a_stock_producer_run_here(make_site, encoded):
    site = make_site(sqs_base64_encoding=encoded)
    site.start()
    settings = {**behind(site.proxy.url, site.config), "broker_transport": "sqs"}
    stock = f"""
from celery import Celery
app = Celery("stock")
app.conf.update({settings!r})
app.send_task("work.quick", ["from stock"])
"""
    result = run("-c", stock)
    assert result.returncode == 0, result.stderr
    site.diary.wait_for("started", key="from stock")


def test_our_messages_run_on_a_stock_worker(make_site):
    site = make_site()
    site.create_queue()
    stock = {**behind(site.proxy.url, site.config), "broker_transport": "sqs"}
    site.start_worker("work", config=stock)
    results = [site.send("quick", "ours"), site.send("stock", "ours, to a stock task")]
    site.diary.wait_for("started", 2)
    site.proxy.wait_for(lambda _: [result.state for result in results] == ["SUCCESS"] * 2)


def test_stock_tasks_keep_stock_behaviour(make_site):
    site = make_site()
    site.start()
    site.send("stock", "early")
    site.send("stock_retrying", "retried")
    site.diary.wait_for("done", key="retried")
    site.diary.wait_for("started", key="early")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.proxy.count("SendMessage") == 3
    assert site.changes() == []
    assert [entry["retries"] for entry in site.diary.entries("started", key="retried")] == [0, 1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"visibility_timout": 30},
            "unknown transport option 'visibility_timout': did you mean 'visibility_timeout'?",
        ),
        ({"visibility_timeout": 50_000}, "expected visibility_timeout to be between 1 and 43200 seconds"),
        ({"heartbeat_interval": 300}, "expected heartbeat_interval to be less than visibility_timeout (30)"),
        ({"error_visibility_timeout": "no.such.function"}, "which cannot be imported"),
    ],
)
def test_bad_options_are_refused_at_start_with_a_sentence_that_helps(make_site, options, sentence):
    site = make_site()
    site.config["broker_transport_options"] |= options
    worker = site.start(ready=False)
    assert worker.wait_exit() == 1
    assert sentence in worker.log
    assert "Traceback" not in worker.log
