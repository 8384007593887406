"""A process that cannot work with its settings ends with one sentence and exit status 1."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.worker import environment

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
def test_a_worker_in_every_pool(make_site, pool):
    worker = make_site(visibility_timout=30).start(pool=pool, ready=False)
    status = worker.wait_exit()
    assert last_line(worker.log, status) == MISSPELT


def test_beat(make_site, tmp_path):
    assert last_line(*beat(make_site(visibility_timout=30), tmp_path)) == MISSPELT


def test_beat_without_credentials(make_site, tmp_path):
    line = last_line(*beat(make_site(), tmp_path, **UNSIGNED))
    assert f"beat cannot start: {NO_CREDENTIALS}" in line


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
