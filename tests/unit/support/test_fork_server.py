"""A forked process is as one that was executed."""

import json
import os
import signal
import subprocess
import sys

import pytest
from support.fork_server import CELERY, TESTS, ForkedProcess, may_fork
from support.processes import SOON, GuardedProcess
from support.worker import environment

SHOW = """
import json, os, signal, sys, threading
streams = [(s.fileno(), s.line_buffering, s.write_through, s.errors) for s in (sys.stdout, sys.stderr)]
print(json.dumps({
    "path": sys.path, "arguments": [sys.argv, sys.orig_argv], "streams": streams,
    "main": sys.modules["__main__"].__name__,
    "env": dict(os.environ), "cwd": os.getcwd(), "session": os.getsid(0) == os.getpid(),
    "files": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "handlers": [str(signal.getsignal(each)) for each in signal.Signals],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": threading.active_count(), "input": sys.stdin.read(),
    "ours": sorted(name for name in sys.modules if name.startswith(("celery_sqs_visibility", "support.app"))),
}), flush=True)
"""


@pytest.fixture
def run(tmp_path):
    """`run(code, env)`: `celery -A` of a module of that code, forked and executed."""

    def both(code, more_paths="", **env):
        (tmp_path / "code_to_run.py").write_text(code)
        command = [*CELERY, "-A", "code_to_run", "report"]
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}:/nowhere:{more_paths}", "TZ": "Asia/Tokyo", **env}
        ends = []
        for fork in (True, False):
            log = tmp_path / f"{fork}.log"
            with log.open("wb") as output:
                if fork:
                    assert may_fork(command, env)
                    process = ForkedProcess(command, env, tmp_path, output)
                else:
                    process = subprocess.Popen(
                        command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output,
                        stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
            ends.append((process.wait(SOON), log.read_text()))
        return ends

    return both


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("more_paths", ["", TESTS.parent], ids=["elsewhere", "where the package is"])
def test_it_finds_what_an_executed_one_does(run, unbuffered, more_paths):
    ends = run(SHOW, more_paths, PYTHONUNBUFFERED=unbuffered)
    forked, executed = (json.loads(log.splitlines()[0]) for _, log in ends)
    assert forked == executed


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('a reason')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit, os; atexit.register(print, 'the end'); raise SystemExit", 0),
        (
            "import threading; threading.Thread(target=lambda: print(1)).start(); raise SystemExit(4)",
            4,
        ),
    ],
)
def test_it_ends_as_an_executed_one_does(run, code, status):
    forked, executed = run(code)
    assert forked == executed
    assert forked[0] == status


def test_it_is_polled_and_waited_for(tmp_path):
    (tmp_path / "code_to_run.py").write_text("import time; time.sleep(60)")
    command = [*CELERY, "-A", "code_to_run", "report"]
    with GuardedProcess(command, tmp_path / "log", {**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        assert isinstance(process._process, ForkedProcess)
        assert process.running
        with pytest.raises(TimeoutError, match="still runs"):
            process.wait_exit(0)
        process.signal_main(signal.SIGTERM)
        assert process.wait_exit() == process.returncode == -signal.SIGTERM


def test_a_worker_is_forked():
    assert may_fork(
        [*CELERY, "-A", "work", "worker"], environment({"task_default_queue": "q"}, PYTHONUNBUFFERED="1")
    )


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ([sys.executable, "-m", "other"], {}),
        ([*CELERY, "-A", "work", "worker", "-P", "gevent"], {}),
        (CELERY, {"PYTHONWARNINGS": "error"}),
        (CELERY, {"REMAP_SIGTERM": "SIGQUIT"}),
        (CELERY, {"COVERAGE_PROCESS_CONFIG": "1"}),
    ],
)
def test_what_a_fork_is_too_late_for_is_executed(command, env):
    assert not may_fork(command, {**os.environ, **env})
