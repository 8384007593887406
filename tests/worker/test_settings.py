"""One setting switches workers, beat and producers over; a wrong one ends a process with one sentence."""

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


POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
MISSPELT = "Error: unknown transport option 'visibility_timout': did you mean 'visibility_timeout'?"
UNSIGNED = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
NO_CREDENTIALS = "no AWS credentials were found; set AWS_ACCESS_KEY_ID"

MODULE = """
from celery import Task
from support.app import make_app
from celery_sqs_visibility import VisibilityTask
app = make_app("wrong")
@app.task({options})
def work(): ...
"""


def last_line(log, status):
    """The line with which a process ended that could not start."""
    assert status == 1, log
    assert "Traceback" not in log
    lines = [line for line in log.splitlines() if line.startswith("Error: ") or "CRITICAL" in line]
    assert len(lines) == 1
    return lines[0]


def command(site, *arguments, **env):
    """What a process printed, and its exit status."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(site.config, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout, done.returncode


def beat(site, tmp_path, **env):
    arguments = ["-m", "celery", "-A", "work", "beat", "--pidfile=", "-s", str(tmp_path / "schedule")]
    return command(site, *arguments, **env)


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_of_every_pool_ends_at_a_misspelt_option(make_site, pool):
    worker = make_site(visibility_timout=30).start(pool=pool, ready=False)
    status = worker.wait_exit()
    assert last_line(worker.log, status) == MISSPELT


def test_beat_ends_at_a_misspelt_option(make_site, tmp_path):
    assert last_line(*beat(make_site(visibility_timout=30), tmp_path)) == MISSPELT


@pytest.mark.parametrize(
    ("options", "env", "said"),
    [({"visibility_timout": 30}, {}, MISSPELT.partition(" ")[2]), ({}, UNSIGNED, NO_CREDENTIALS)],
    ids=["option", "credentials"],
)
def test_a_producers_last_line_says_it(make_site, options, env, said):
    log, status = command(make_site(**options), "-c", "import work; work.app.send_task('work.quick')", **env)
    assert status == 1
    assert said in log.splitlines()[-1]
    assert "botocore" not in log


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("error_visibility_timeout=60", "give the task base=VisibilityTask, or the app task_cls"),
        ("base=VisibilityTask, error_visiblity_timeout=60", "did you mean 'error_visibility_timeout'?"),
    ],
    ids=["no VisibilityTask", "misspelt"],
)
def test_a_task_with_a_setting_that_nobody_would_read(make_site, tmp_path, options, said):
    (tmp_path / "wrong.py").write_text(MODULE.format(options=options))
    worker = make_site().start("wrong", pool="solo", ready=False, import_paths=[tmp_path])
    status = worker.wait_exit()
    line = last_line(worker.log, status)
    assert "task 'wrong.work'" in line
    assert said in line


def test_on_another_broker_a_worker_warns_once(make_site):
    site = make_site({"broker_transport": None, "broker_url": "memory://", "broker_transport_options": {}})
    worker = site.start(pool="solo").wait_for_log("this worker's broker transport is")
    assert worker.log.count("set broker_transport = 'celery_sqs_visibility'") == 1
