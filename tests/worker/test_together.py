"""Workers with remote control, metrics, health and fanout at the same time: what each sees of the others."""

import os
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest
from kombu import Queue
from kombu.common import Broadcast
from support.app import CONSTANTS
from support.commands import run_celery, run_json
from support.processes import SOON, free_port, wait_until

from celery_sqs_visibility.operate.health.probe import ask, sockets

NODE = f"w1@{socket.gethostname()}"


@pytest.fixture
def site(make_control_site, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))
    often = {CONSTANTS: {"celery_sqs_visibility.policy.options.SAMPLE_ALONE_SECONDS": 10}}
    options = {"supports_fanout": True, "http_address": f":{free_port()}", "wait_time_seconds": 1}
    return make_control_site(often, **options)


def get(site, path):
    port = site.config["broker_transport_options"]["http_address"].removeprefix(":")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SOON) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def prefix_of(site):
    """Of the names of control queues."""
    return site.config["broker_transport_options"]["control_prefix"]


def control_queues(site):
    return site.sqs.list_queues(QueueNamePrefix=prefix_of(site)).get("QueueUrls", [])


def wait_for_nodes(site, count):
    wait_until(lambda: len(site.app.control.ping(timeout=2)) == count, 2 * SOON, f"{count} answers")


def test_control_queues_are_none_of_the_apps_and_a_paused_one_is_everywhere(site, emulator):
    env = {"NEWS": f"news-{site.queue}", "AWS_ENDPOINT_URL_SNS": emulator.url}
    worker = site.start("newsroom", name="w1", env=env, concurrency=1, extra_args=["--max-tasks-per-child=1"])
    site.app.conf.task_queues = [Queue(site.queue), Broadcast(env["NEWS"])]
    wait_for_nodes(site, 1)
    assert len(control_queues(site)) == 2, "the worker's and this process's"
    site.app.send_task("newsroom.read", ["by SNS"], queue=env["NEWS"])
    site.diary.wait_for("started", key="by SNS")
    for key in ("first child", "second child"):
        site.app.send_task("newsroom.ping", [key])
        (pinged,) = site.diary.wait_for("pinged", key=key)
        assert pinged["nodes"] == [NODE]
    site.app.control.broadcast("sqs_pause", arguments={"queue": site.queue}, reply=True, timeout=2)
    said = f"of which {site.queue!r} is paused"
    wait_until(lambda: any(said in each["reason"] for each in ask(None, "/readyz", 5)), SOON, said)
    assert f'celery_sqs_queue_paused{{queue="{site.queue}"}} 1.0' in get(site, "/metrics")
    queues = set(re.findall(r'queue="([^"]*)"', get(site, "/metrics")))
    assert {name for name in queues if not name.startswith("bcast")} <= {
        site.queue,
        env["NEWS"],
        "control",
        "monitor",
        "other",
    }
    status = run_json(site.config, "status", "--timeout", "3")
    assert [each["queue"] for each in status["queues"]] == [site.queue]
    assert status["workers"][NODE]["queues"][site.queue]["paused"]
    for command in (["purge", "-f"], ["list", "bindings"], ["sqs", "doctor"], ["sqs", "queues", "create"]):
        done = run_celery(site.config, *command)
        assert "Traceback" not in done.stderr
        assert prefix_of(site) not in done.stdout + done.stderr
    control = [line for line in worker.log.splitlines() if prefix_of(site) in line]
    assert all("takes messages of remote control" in line for line in control)


def test_two_workers_of_one_name_both_answer(site):
    workers = [site.start(name="w1", ready=False) for _ in range(2)]
    for each in workers:
        each.wait_ready()
    wait_until(lambda: len(control_queues(site)) >= 2, SOON, "their queues")
    wait_for_nodes(site, 2)
    assert {each["pid"] for each in ask("w1", "/healthz", SOON)} == {each.pid for each in workers}


def test_a_detached_worker_answers_from_its_daemon(site, tmp_path):
    pidfile, log = tmp_path / "w1.pid", tmp_path / "daemon.log"
    done = run_celery(
        site.config, "worker", "-D", "-n", "w1@%h", "-c", "1", f"--pidfile={pidfile}", f"--logfile={log}"
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: pidfile.exists() and pidfile.read_text(), SOON, "the daemon's pid")
    pid = int(pidfile.read_text())
    try:
        wait_until(lambda: list(ask("w1", "/readyz", 1)), 2 * SOON, "the daemon's socket")
        wait_until(lambda: all(each["ok"] for each in ask("w1", "/readyz", 1)), 2 * SOON, "it to be ready")
        (answer,) = ask("w1", "/healthz", SOON)
        assert answer["pid"] == pid
        wait_for_nodes(site, 1)
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not sockets() and not control_queues(site)[1:], 2 * SOON, log.read_text)
