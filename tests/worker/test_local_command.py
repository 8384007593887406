"""`celery sqs local`: a worker and a producer run with the line that it prints."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from support.commands import run_celery
from support.processes import GuardedProcess
from support.worker import WorkerProcess

LINE = re.compile(r"^export (.*)$", re.MULTILINE)


@pytest.fixture
def local(tmp_path):
    command = [sys.executable, "-m", "celery", "sqs", "local", "--port", "0"]
    with GuardedProcess(command, tmp_path / "local.log", {**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        yield process.wait_for_log("export ", 60)


@pytest.mark.own_pool
def test_a_worker_and_a_producer_run_with_the_line_that_is_printed(local, tmp_path, diary):
    config = {"task_default_queue": "q", "broker_transport_options": {"wait_time_seconds": 1}}
    pasted = dict(pair.split("=", 1) for pair in LINE.search(local.log)[1].split())
    worker = WorkerProcess("work", tmp_path / "worker.log", config=config, pool="threads", env=pasted)
    with worker:
        worker.wait_ready()
        sent = run_celery(config, "call", "work.quick", "--args", '["here"]', env=pasted)
        assert sent.returncode == 0, sent.stderr
        diary.wait_for("started", key="here")
    local.signal_main(signal.SIGINT)
    assert local.wait_exit() == 0


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run_celery({}, "sqs", "local", "--port", port)
    assert (refused.returncode, f"127.0.0.1:{port}" in refused.stderr) == (1, True)


def test_without_moto_a_sentence_names_the_extra():
    program = "import sys; sys.modules['moto'] = None; from celery.__main__ import main; main()"
    command = [sys.executable, "-c", program, "sqs", "local", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "celery_sqs_visibility[local]" in done.stderr) == (1, True), done.stderr
