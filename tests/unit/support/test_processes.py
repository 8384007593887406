"""Workers are real processes that can be frozen and killed, and none is left behind."""

import os
import subprocess
import sys

import pytest
from support.processes import is_alive, wait_until
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


def test_tasks_can_note_where_only_the_standard_library_is_installed():
    """Their modules are imported in environments of monitors and of others, too."""
    subprocess.run([sys.executable, "-S", "-c", "import support.diary"], cwd=TESTS, check=True, timeout=60)
