"""`celery sqs local`: a worker and a producer run with the line that it prints."""

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

SERVICES = ["sqs", "s3", "sns", "dynamodb", "sts", "kms", "cloudwatch"]
#: Packages of `moto[server]` that the extra `local` leaves out.
LEFT_OUT = ["antlr4", "aws_xray_sdk", "cfnlint", "graphql", "joserfc", "openapi_spec_validator", "pyparsing"]


def serving(log, port="0"):
    """A process of `celery sqs local`."""
    command = [sys.executable, "-m", "celery", "sqs", "local", "--port", port]
    return GuardedProcess(command, log, {**os.environ, "PYTHONUNBUFFERED": "1"})


def environment_of(local):
    """What its line says to paste."""
    return dict(pair.split("=", 1) for pair in LINE.search(local.log)[1].split())


@pytest.fixture
def local(tmp_path):
    with serving(tmp_path / "local.log") as process:
        yield process.wait_for_log("export ", 60)


@pytest.mark.own_pool
def test_a_worker_and_a_producer_run_with_the_line_that_is_printed(local, tmp_path, diary):
    config = {"task_default_queue": "q", "broker_transport_options": {"wait_time_seconds": 1}}
    pasted = environment_of(local)
    worker = WorkerProcess("work", tmp_path / "worker.log", config=config, pool="threads", env=pasted)
    with worker:
        worker.wait_ready()
        sent = run_celery(config, "call", "work.quick", "--args", '["here"]', env=pasted)
        assert sent.returncode == 0, sent.stderr
        diary.wait_for("started", key="here")
    local.signal_main(signal.SIGINT)
    assert local.wait_exit() == 0


@pytest.mark.own_pool
def test_a_worker_that_outlives_a_restart_says_what_makes_its_queues_and_goes_on(local, tmp_path, diary):
    config = {"task_default_queue": "q", "broker_transport_options": {"wait_time_seconds": 1}}
    pasted = environment_of(local)
    worker = WorkerProcess("work", tmp_path / "worker.log", config=config, pool="threads", env=pasted)
    with worker:
        worker.wait_ready()
        local.signal_main(signal.SIGINT)
        assert local.wait_exit() == 0
        port = pasted["AWS_ENDPOINT_URL"].rpartition(":")[2]
        with serving(tmp_path / "again.log", port) as again:
            again.wait_for_log("need new queues: celery -A ... sqs queues create", 60)
            worker.wait_for_log("`celery -A ... sqs queues create` makes it anew", 60)
            made = run_celery(config, "sqs", "queues", "create", env=pasted)
            assert made.returncode == 0, made.stderr
            sent = run_celery(config, "call", "work.quick", "--args", '["after"]', env=pasted)
            assert sent.returncode == 0, sent.stderr
            diary.wait_for("started", key="after")


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


def test_its_services_need_no_package_that_the_extra_leaves_out():
    left_out = f"import sys; sys.modules.update(dict.fromkeys({LEFT_OUT}))"
    served = f"from moto import server, backends; [backends.get_backend(name) for name in {SERVICES}]"
    subprocess.run([sys.executable, "-c", f"{left_out}; {served}"], check=True)
