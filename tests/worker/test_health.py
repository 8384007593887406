"""What a probe hears of a real worker: that it works, hangs, waits for SQS, ends, or is not there."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.commands import run_celery, run_json
from support.faults import black_hole
from support.processes import SOON, free_port, wait_until

from celery_sqs_visibility.operate.health.probe import NOBODY, UNWELL, WELL, ask, directory

PROBE = [sys.executable, "-m", "celery_sqs_visibility.operate.health.probe", "--timeout", "20"]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path_factory, monkeypatch):
    """Sockets of this test's workers alone; paths of Unix sockets are short."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("h")))


def probe(*options):
    done = subprocess.run([*PROBE, *options], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def wait_for(status, *options, saying=""):
    """Wait until the probe ends with that status and says that."""
    answers = []

    def answers_so():
        answers.append(probe(*options))
        return answers[-1][0] == status and saying in answers[-1][1]

    wait_until(answers_so, SOON, lambda: f"status {status} and {saying!r}, not {answers[-1]}")


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SOON) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_worker_is_well_frozen_and_gone(make_site, pool):
    site = make_site()
    worker = site.start(pool=pool, name="w1")
    wait_for(WELL, "--ready")
    node = f"w1@{socket.gethostname()}"
    assert probe() == (WELL, f"{node}: live: consumes 1 queue\n")
    assert probe("-n", "w1@%h", "--json")[0] == probe("-n", "w1", "--ready")[0] == WELL
    assert probe("-n", "w2")[0] == NOBODY

    worker.signal_main(signal.SIGSTOP)
    assert probe("--timeout", "0.5") == (UNWELL, f"{node}: does not answer within 0.5 s\n")
    assert not next(ask(node, "/healthz", 0.5))["ok"]
    worker.signal_main(signal.SIGCONT)
    wait_for(WELL)
    worker.kill()
    wait_for(NOBODY)


def test_a_life_with_an_outage_at_its_start_one_in_its_middle_and_a_running_task_at_its_end(
    make_site, tmp_path
):
    site = make_site(wait_time_seconds=1)
    site.proxy.refuse()
    worker = site.start(ready=False)
    wait_for(UNWELL, "--ready", saying="it waits for its queues, or for SQS")
    wait_for(WELL, saying="live: starting")
    site.proxy.accept()
    wait_for(WELL, "--ready")
    with site.proxy.inject(black_hole()):
        wait_for(UNWELL, "--ready", saying="cannot receive from queue")
        assert probe()[0] == WELL
    wait_for(WELL, "--ready")

    site.send("held", "last", str(end := tmp_path / "end"))
    site.diary.wait_for("started", key="last")
    worker.terminate()
    wait_for(UNWELL, "--ready", saying="it is shutting down")
    assert probe()[0] == WELL
    end.touch()
    worker.wait_exit()
    assert probe()[0] == NOBODY
    assert list(Path(directory()).iterdir()) == []


def test_by_celery_over_http_and_of_two_workers_with_one_port_the_second_waits_for_it(make_site):
    port = free_port()
    site = make_site(http_address=f":{port}")
    first = site.start(name="first")
    wait_for(WELL, "--ready")
    (told,) = run_json(site.config, "health", "--ready", "--timeout", "20")
    assert told["polls"] == [
        {"queue": site.queue, "late": 0.0, "accepted": True, "error": "", "paused": False, "hidden": 0}
    ]
    assert run_celery(site.config, "sqs", "health", "-n", "nobody").returncode == NOBODY
    second = site.start(name="second")
    assert "cannot answer HTTP requests, so the worker goes on without: http_address" in second.log
    assert "cannot answer" not in first.log
    status, answer = get(port, "/readyz")
    assert (status, answer["node"].partition("@")[0], answer["processes"]) == (200, "first", 2)
    for pid in first.children():
        os.kill(pid, signal.SIGSTOP)  # they outlive their parent, and do not keep its port
    first.signal_main(signal.SIGKILL)
    first.wait_exit()
    wait_until(lambda: "is free at last" in second.log, SOON, lambda: second.log)
    status, answer = get(port, "/readyz")
    assert (status, answer["node"].partition("@")[0]) == (200, "second")
    assert probe("--json")[0] == WELL
    assert second.log.count("http_address") == 2


def test_a_worker_without_descriptors_for_a_new_child_ends_with_a_status_that_says_so(make_site):
    site = make_site(wait_time_seconds=1)
    worker = site.start(concurrency=1)
    wait_for(WELL, "--ready")
    limit = 5  # none of what is open is closed, and nothing else can be opened
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, limit))
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    assert worker.wait_exit() != 0, worker.log
