"""The status is shown again and again, in a real process, until somebody has seen enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support.app import CONFIG_VARIABLE, encode_config
from support.processes import SOON
from support.worker import IMPORT_PATHS


def test_watching_ends_well_at_ctrl_c(make_site):
    site = make_site()
    site.create_queue()
    path = os.pathsep.join(map(str, IMPORT_PATHS))
    environment = {**os.environ, CONFIG_VARIABLE: encode_config(site.config), "PYTHONPATH": path}
    command = [sys.executable, "-m", "celery", "-A", "work", "sqs", "status", "--json", "--watch", "0.1"]
    watching = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
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


@pytest.fixture
def watch():
    """`watch(site, *options)`: frames of `celery sqs status --watch`, as JSON, one by one."""
    started = []

    def start(site, *options):
        path = os.pathsep.join(map(str, IMPORT_PATHS))
        environment = {**os.environ, CONFIG_VARIABLE: encode_config(site.config), "PYTHONPATH": path}
        command = [sys.executable, "-m", "celery", "-A", "work", "sqs", "status", "--json", "--watch", "0.1"]
        process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return frames(process.stdout)

    yield start
    for process in started:
        process.kill()
        process.stdout.close()
        process.wait()


def frames(lines):
    text = ""
    for line in lines:
        text += line
        if line == "}\n":
            yield json.loads(text)
            text = ""


@pytest.mark.parametrize("remote_control", [False, True])
def test_watching_goes_on_in_an_outage_and_says_how_old_the_figures_are(make_site, watch, remote_control):
    site = make_site(
        remote_control=remote_control, **{"client-config": {"retries": {"total_max_attempts": 1}}}
    )
    site.create_queue()
    site.send("quick", "a")
    seen = watch(site, "--timeout", "0.2")
    (queue,) = next(seen)["queues"]
    assert (queue["visible"], queue["age_seconds"], queue["error"]) == (1, 0, None)
    site.proxy.refuse()
    (old,) = next(queue for frame in seen if (queue := frame["queues"])[0]["age_seconds"])
    assert (old["visible"], old["error"] is None) == (1, False)
    (older,) = next(
        queue for frame in seen if (queue := frame["queues"])[0]["age_seconds"] > old["age_seconds"]
    )
    assert older["visible"] == 1
    site.proxy.accept()
    (new,) = next(queue for frame in seen if not (queue := frame["queues"])[0]["age_seconds"])
    assert (new["visible"], new["error"]) == (1, None)
