"""What a probe hears of a real worker: that it works, hangs, waits for SQS, ends, or is not there."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from support.commands import run_celery, run_json
from support.faults import black_hole, cut_waits
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
    began = time.monotonic()  # without the start of a process
    assert not next(ask(node, "/healthz", 0.5))["ok"]
    assert time.monotonic() - began < 2
    worker.signal_main(signal.SIGCONT)
    wait_for(WELL)
    worker.kill()
    wait_for(NOBODY)


@pytest.mark.parametrize("ends_first", [True, False], ids=["the older", "the younger"])
def test_of_two_workers_with_one_name_the_end_of_one_leaves_the_other(make_site, ends_first):
    site = make_site(wait_time_seconds=1)
    workers = [site.start(pool="solo", name="w1") for _ in range(2)]
    ending, staying = workers if ends_first else reversed(workers)
    wait_for(WELL, "-n", "w1", "--ready")
    for frozen in workers:
        frozen.signal_main(signal.SIGSTOP)
        assert probe("-n", "w1", "--timeout", "0.5")[0] == UNWELL
        frozen.signal_main(signal.SIGCONT)
    ending.terminate()
    ending.wait_exit()
    line = f"w1@{socket.gethostname()}: live: consumes 1 queue\n"
    assert probe("-n", "w1") == probe() == (WELL, line)
    assert probe("--ready")[0] == WELL
    staying.kill()
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
    wait_for(UNWELL, "--ready", saying="it shuts down")
    assert probe()[0] == WELL
    end.touch()
    worker.wait_exit()
    assert probe()[0] == NOBODY
    assert list(Path(directory()).iterdir()) == []


def test_a_worker_whose_idle_polls_a_proxy_cuts_is_ready_and_says_what_to_set(make_site):
    site = make_site()
    site.proxy.inject(cut_waits(3), "ReceiveMessage")
    worker = site.start()
    wait_for(WELL, "--ready")
    worker.wait_for_log("cut off while they wait for messages (3 so far, the latest after 3 s)")
    assert "set wait_time_seconds to less than that" in worker.log
    cuts = len([call for call in site.proxy.calls("ReceiveMessage") if call.answer is None])
    for more in range(1, 4):
        site.proxy.wait_for(
            lambda calls, more=more: sum(each.answer is None for each in calls) >= cuts + more
        )
        assert probe("--ready")[0] == WELL
    site.begin("a")
    assert "cannot receive from" not in worker.log


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


@contextmanager
def slow_clients(port, number):
    """Clients that each begin a request, and go on with it by a byte at a time."""
    over = threading.Event()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SOON))
            for _ in range(number)
        ]

        def trickle():
            while not over.wait(0.5):
                for client in clients:
                    with suppress(OSError):  # it was closed
                        client.sendall(b"x")

        for client in clients:
            with suppress(OSError):
                client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        with ThreadPoolExecutor(1) as thread:
            thread.submit(trickle)
            try:
                yield
            finally:
                over.set()


def open_files(worker):
    return len([*Path(f"/proc/{worker.pid}/fd").iterdir()])


def test_slow_clients_use_up_neither_descriptors_nor_threads_and_probes_are_answered(make_site):
    port = free_port()
    site = make_site(http_address=f":{port}", wait_time_seconds=1)
    worker = site.start(concurrency=1)
    wait_for(WELL, "--ready")
    limit = open_files(worker) + 60
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, limit))
    threads = psutil.Process(worker.pid).num_threads()
    with slow_clients(port, 300):
        assert get(port, "/readyz")[0] == 200
        assert probe("--ready")[0] == WELL
        assert psutil.Process(worker.pid).num_threads() <= threads + 16 + 4
        (child,) = worker.children()
        os.kill(child, signal.SIGKILL)
        site.begin("after the child's end")
    assert worker.children() != [child]
    worker.terminate()
    assert worker.wait_exit() == 0


def test_a_worker_without_descriptors_for_a_new_child_ends_with_a_status_that_says_so(make_site):
    site = make_site(wait_time_seconds=1)
    worker = site.start(concurrency=1)
    wait_for(WELL, "--ready")
    limit = 5  # none of what is open is closed, and nothing else can be opened
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, limit))
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    assert worker.wait_exit() != 0, worker.log
