"""The example project in docs/quickstart.md: its commands in three terminals do what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import GuardedProcess
from support.worker import TESTS

ROOT = TESTS.parent
PAGE = (ROOT / "docs/quickstart.md").read_text().partition("## The example project\n")[2]
FIRST, SECOND, THIRD, QUERY = (
    re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
)


@pytest.fixture
def environment():
    """A shell's whose programs are those of the tests, and which finds the example as from its directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_ENDPOINT_URL")}
    return {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "examples"),
        "PYTHONUNBUFFERED": "1",
    }


def typed(commands, environment, directory):
    """Run the commands of a terminal; what they printed."""
    text = "\n".join(command for command in commands if command != "cd examples")
    shell = ["sh", "-eu", "-c", text]
    done = subprocess.run(
        shell, env=environment, cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.prefork_only("the page's command names no pool")
def test_the_commands_of_the_page_import_an_object_and_skip_it_the_second_time(environment, tmp_path):
    assert FIRST[-1] == "celery sqs local"
    with GuardedProcess([*FIRST[-1].split(), "--port", "0"], tmp_path / "local.log", environment) as local:
        local.wait_for_log("export ", 60)
        line = re.search(r"^export (.*)$", local.log, re.MULTILINE)[1]
        environment |= dict(pair.split("=", 1) for pair in line.split())
        typed(SECOND[:-1], environment, tmp_path)
        worker = GuardedProcess(SECOND[-1].split(), tmp_path / "worker.log", environment, tmp_path)
        with worker:
            worker.wait_for_log("ready.", 60)
            typed(THIRD, environment, tmp_path)
            for shown in re.search(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1].splitlines():
                worker.wait_for_log(shown.partition("[...]")[2], 60)
            assert typed(QUERY, environment, tmp_path) == "[]\n"
