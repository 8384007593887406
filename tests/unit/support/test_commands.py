"""Commands are forked, and told from what they print, as executed ones are."""

import subprocess

import pytest
from support import commands
from support.commands import run_celery

CODE = """
import sys
print("out", sys.stdin.readline(), end="")
print("err", repr(sys.stdin.read()), sys.argv[1:], file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("forks", [True, False])
def test_a_command_reads_what_is_typed_and_prints_apart_what_is_wrong(tmp_path, monkeypatch, forks):
    (tmp_path / "typed_to.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if not forks:
        monkeypatch.setattr(commands, "may_fork", lambda *_: False)
    done = run_celery({}, "report", module="typed_to", typed="first\nsecond\n")
    assert (done.returncode, done.stdout) == (3, "out first\n")
    assert done.stderr == "err 'second\\n' ['-A', 'typed_to', 'report']\n"


def test_a_command_that_hangs_is_killed(tmp_path, monkeypatch):
    (tmp_path / "hanging.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(commands, "SECONDS", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        run_celery({}, "report", module="hanging")
