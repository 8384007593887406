"""One setting switches workers, beat and producers over, one process at a time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.app import behind
from support.worker import environment

PRODUCER = """
from celery import Celery
import sys

app = Celery("producer")
app.conf.broker_transport = "celery_sqs_visibility"
app.conf.broker_transport_options = {"region": "us-east-1"}
app.conf.task_default_queue = sys.argv[1]
app.send_task("work.quick", ["from a script"])
assert "celery_sqs_visibility.worker" in sys.modules
assert "celery_sqs_visibility.worker.request" not in sys.modules
assert "pycurl" not in sys.modules
"""

STOCK = """
from celery import Celery
import json, sys

app = Celery("stock")
app.conf.update(json.loads(sys.argv[2]))
app.send_task("work.quick", ["from a script"])
"""


def stock(site):
    """The settings of the same site with kombu's own transport."""
    return {**behind(site.proxy.url, site.config), "broker_transport": "sqs"}


@pytest.mark.parametrize(
    ("script", "options"),
    [(PRODUCER, {}), (STOCK, {"sqs_base64_encoding": True}), (STOCK, {"sqs_base64_encoding": False})],
    ids=["one with the setting and nothing of ours", "a stock one", "a stock one without base64"],
)
def test_a_worker_without_broker_url_finds_sqs_and_runs_what_any_producer_sends(make_site, script, options):
    site = make_site(**options)
    worker = site.start()
    # Ours has no broker_url either; the endpoint is in the environment, as for any boto3 program.
    command = [sys.executable, "-c", script, site.queue, json.dumps(stock(site))]
    how = {"env": environment({}), "capture_output": True, "text": True, "timeout": 60}
    result = subprocess.run(command, check=False, **how)
    assert result.returncode == 0, result.stderr
    site.diary.wait_for("started", key="from a script")
    assert not any("localhost" in call.request.get("QueueUrl", "") for call in site.proxy.calls())
    assert "No hostname was supplied" not in worker.log


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


def test_our_messages_run_on_a_stock_worker(make_site):
    site = make_site()
    site.create_queue()
    site.start_worker("work", config=stock(site))
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
