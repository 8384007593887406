"""The probe finds the workers of this host, waits for none beyond its time, and says how they are."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from errno import EAGAIN
from functools import partial
from pathlib import Path

import pytest
from support.processes import SOON

from celery_sqs_visibility.operate.health import probe
from celery_sqs_visibility.operate.health.probe import directory, name_of, sockets
from celery_sqs_visibility.operate.http_server import HTTPListener, HTTPServer, Response


@pytest.fixture(autouse=True)
def _own_directory(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("p")))


@pytest.fixture
def listen():
    """`listen("node", answer)`: a worker that answers; without an answer, one that is frozen."""
    ends = []

    def start(node, answer=None):
        listening = probe.listen(node)
        ends.append(partial(probe.remove, listening))
        if answer is None:
            ends.append(listening.close)
        else:
            body = json.dumps({"node": node, **answer}) if isinstance(answer, dict) else answer
            listener = HTTPListener(lambda: listening, {"/healthz": lambda: Response(body)})
            listener.claim()
            server = HTTPServer([listener])
            server.start()
            ends.append(server.stop)
        return listening

    yield start
    for end in ends:
        end()


def names(node=None):
    return [name for name, _ in sockets(node)]


def test_all_workers_are_asked_together_and_one_that_is_frozen_costs_its_time_once(listen, capsys):
    frozen = [f"a{number:02}@h" for number in range(40)]
    for node in frozen:
        listen(node)
    listen("b@h", {"ok": True, "reason": "live: consumes 1 queue"})
    began = time.monotonic()
    assert probe.run(None, 1.0, ready=False, as_json=False) == probe.UNWELL
    assert time.monotonic() - began < len(frozen), "one after the other takes as many seconds"
    told = [f"{node}: does not answer within 1 s" for node in frozen]
    assert capsys.readouterr().out.splitlines() == [*told, "b@h: live: consumes 1 queue"]


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"ok": True, "reason": "live"}, probe.WELL, "live"),
        ({"ok": False, "reason": "stuck"}, probe.UNWELL, "stuck"),
        ("see the worker's log", probe.UNWELL, "cannot say how it is: see its log"),
    ],
)
def test_a_worker_says_how_it_is(listen, capsys, answer, status, reason):
    listen("w@h", answer)
    assert probe.run("w@h", 5, ready=False, as_json=True) == status
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["node"], said["reason"]) == ("w@h", reason)


@pytest.mark.parametrize("node", [f"w@{socket.gethostname()}", "w@%h", "w"])
def test_a_node_is_named_with_or_without_its_host(listen, node):
    listen(f"w@{socket.gethostname()}")
    listen("w2@h")
    assert names(node) == [name_of(f"w@{socket.gethostname()}")]


def test_nobody_is_there(capsys):
    assert probe.run("w@h", 1, ready=False, as_json=False) == probe.NOBODY
    assert f"no worker w@h of user {os.getuid()} runs here" in capsys.readouterr().err


def test_a_killed_worker_is_nobody_and_the_next_worker_removes_its_file(listen):
    listen("killed@h").close()
    assert list(probe.ask(None, "/healthz", 1)) == []
    listen("next@h")
    assert names() == ["next@h"]


def test_a_worker_whose_backlog_is_full_keeps_its_file(listen):
    probed = listen("busy@h")
    probed.listen(0)
    with ExitStack() as clients:
        status = 0
        while status != EAGAIN:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            status = client.connect_ex(probed.getsockname())
        listen("next@h")
    assert names() == ["busy@h", "next@h"]


@pytest.mark.parametrize("ends", [0, 1])
def test_of_two_workers_with_one_name_both_are_asked_and_the_end_of_one_leaves_the_other(listen, ends):
    two = [listen("w@h", {"ok": True, "reason": reason}) for reason in ("first", "second")]
    assert sorted(each["reason"] for each in probe.ask("w@h", "/healthz", 5)) == ["first", "second"]
    probe.remove(two[ends])
    assert [each["reason"] for each in probe.ask("w@h", "/healthz", 5)] == [("second", "first")[ends]]


@pytest.mark.parametrize(
    ("others", "status"),
    [
        ([], probe.UNWELL),
        ([{"ok": True, "reason": "ready", "phase": "running"}], probe.WELL),
        ([{"ok": False, "reason": "not ready", "phase": "starting"}], probe.UNWELL),
        ([None], probe.UNWELL),
        ([{"ok": True, "reason": "ready", "phase": "running", "node": "other@h"}], probe.UNWELL),
    ],
    ids=["alone", "ready", "starting", "frozen", "another node"],
)
def test_a_worker_that_shuts_down_says_nothing_of_its_successor(listen, others, status):
    listen("w@h", {"ok": False, "reason": "not ready: it is shutting down", "phase": "stopping"})
    for answer in others:
        listen("w@h", answer)
    assert probe.run(None, 0.5 if None in others else SOON, ready=False, as_json=False) == status


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_kernel_knows_a_socket_by_the_name_that_it_keeps(listen):
    listen("w@h")
    listen("w@h")
    known = Path("/proc/net/unix").read_text()
    assert all(path in known for _, path in sockets("w@h"))
    own = f"w@h~{os.getpid()}"
    assert {each.name for each in Path(directory()).iterdir()} == {f"{own}.sock", f"{own}.1.sock"}


def test_names_of_nodes_are_those_of_files_and_short():
    assert name_of("w@h") == "w@h"
    odd = [name_of(node) for node in ("w/1@h", "w_1@h", "w 1@h", "x" * 300, "x" * 301)]
    assert len(set(odd)) == 5
    assert all("/" not in name and len(name) < 60 for name in odd)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_a_directory_that_others_may_enter_is_not_used(make):
    make(Path(directory()), 0o755)
    with pytest.raises(PermissionError, match="remove it"):
        probe.listen("w@h")
    assert sockets() == []


def test_the_probe_imports_nothing_but_the_standard_library_and_little_of_that():
    code = "import sys, celery_sqs_visibility.operate.health.probe; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not modules & {"celery", "kombu", "boto3", "botocore", "click", "asyncio", "http.client", "email"}


@pytest.fixture
def closed_pipe():
    """A pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        yield pipe


def test_a_probe_of_no_worker_whose_reader_has_gone_has_its_status(closed_pipe):
    command = [sys.executable, "-m", probe.__name__]
    done = subprocess.run(command, stderr=closed_pipe, timeout=60, check=False)
    assert done.returncode == probe.NOBODY


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("answer", "options", "status"),
    [
        ({"ok": True, "reason": "live: consumes 1 queue"}, [], probe.WELL),
        ({"ok": True, "reason": "live " * 100_000}, ["--json"], probe.WELL),
        ({"ok": False, "reason": "hangs"}, [], probe.UNWELL),
        ({"ok": True, "reason": "live"}, ["--help"], 0),
    ],
    ids=["a line", "much JSON", "unwell", "help"],
)
def test_a_probe_whose_reader_has_gone_has_its_status_and_no_traceback(
    listen, closed_pipe, monkeypatch, unbuffered, answer, options, status
):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    listen("a@h", answer)
    command = [sys.executable, "-m", probe.__name__, *options]
    done = subprocess.run(
        command, stdout=closed_pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (status, "")
