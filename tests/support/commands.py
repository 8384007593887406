"""`celery -A <module> ...` as a process, and `sqs` in this one, for tests of commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from support.fork_server import CELERY, END_SECONDS, ForkedProcess, may_fork
from support.worker import environment

from celery_sqs_visibility.operate.commands import sqs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery
    from click.testing import Result

SECONDS = 120  # of a command that hangs


def invoke(app: Celery, *args: str, **options: Any) -> Result:
    """Run `celery sqs *args` of an app in this process."""
    return CliRunner().invoke(sqs, args, obj=SimpleNamespace(app=app), **options)


def run_celery(
    config: Mapping[str, Any],
    *args: str,
    module: str = "work",
    env: Mapping[str, str] | None = None,
    typed: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `celery -A module *args` to its end, with the settings, this process's endpoints, and answers."""
    command = [*CELERY, "-A", module, *map(str, args)]
    found = environment(config, **(env or {}))
    if may_fork(command, found):
        return _fork(command, found, typed)
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, timeout=SECONDS, env=found, check=False
    )


def _fork(command: list[str], env: Mapping[str, str], typed: str) -> subprocess.CompletedProcess[str]:
    with ExitStack() as files:
        given, output, errors = (files.enter_context(TemporaryFile("w+")) for _ in range(3))
        given.write(typed)
        given.seek(0)  # writes it, too
        process = ForkedProcess(command, env, None, output.buffer, errors.buffer, given.buffer)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_SECONDS)
            raise
        # The files' positions are the process's, too.
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


def run_json(config: Mapping[str, Any], *args: str, **options: Any) -> Any:
    """What `celery -A module sqs *args --json` printed; it ends with status 0 or 1."""
    done = run_celery(config, "sqs", *args, "--json", **options)
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)
