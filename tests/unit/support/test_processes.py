"""Workers are real processes that can be frozen and killed, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.diary import DIARY_VARIABLE, Diary, note
from support.processes import GuardedProcess, is_alive, wait_until
from support.worker import TESTS, WorkerProcess

# In pytest's place: it starts a process that starts another, and tells their pids.
ORPHANING = """
import sys, time
from pathlib import Path
from support.processes import GuardedProcess
child = "import subprocess as s; c = s.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
process = GuardedProcess([sys.executable, "-c", child], Path(sys.argv[1]))
process.start()
print(process.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_that_cannot_start_says_why(tmp_path):
    with WorkerProcess("no_such_module", tmp_path / "worker.log") as worker:
        with pytest.raises(RuntimeError, match="no_such_module"):
            worker.wait_ready()
        assert worker.returncode not in (0, None)


def test_nothing_survives_a_killed_test_run(tmp_path):
    log = tmp_path / "child.log"
    run = subprocess.Popen(
        [sys.executable, "-c", ORPHANING, str(log)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        child = int(run.stdout.readline())
        grandchild = int(wait_until(log.read_text, 20, "the grandchild's pid"))
        run.kill()
    wait_until(lambda: not (is_alive(child) or is_alive(grandchild)), 20, "the orphans to be gone")


def test_stopping_is_idempotent_and_may_come_first(tmp_path):
    process = GuardedProcess(["sleep", "60"], tmp_path / "sleep.log")
    process.stop()
    process.start()
    process.stop()
    process.stop()
    assert process.returncode == -signal.SIGKILL


def test_the_diary_keeps_every_line_whole(tmp_path, monkeypatch):
    monkeypatch.setenv(DIARY_VARIABLE, str(tmp_path / "diary"))
    diary = Diary(tmp_path / "diary")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: note("run", number=number, filling="x" * 5000), range(200)))
    assert sorted(entry["number"] for entry in diary.entries("run")) == list(range(200))
    (entry,) = diary.wait_for("run", number=7)
    assert entry["pid"] == os.getpid()
    assert diary.count("another") == 0


def test_tasks_can_note_where_only_the_standard_library_is_installed():
    """Their modules are imported in environments of monitors and of others, too."""
    subprocess.run([sys.executable, "-S", "-c", "import support.diary"], cwd=TESTS, check=True, timeout=60)
