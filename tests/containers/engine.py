"""The Docker engine, by its command line.

All that is made here carries a label, whose value is the process that made it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

LABEL_NAME = "celery-sqs-visibility.tests"
LABEL = f"{LABEL_NAME}={os.getpid()}"
ANSWER_SECONDS = 30
BUILD_SECONDS = 1800  # on a machine that does much else


class EngineError(RuntimeError):
    """A docker command that failed, with what it printed."""


def missing() -> str | None:
    """Why there is no engine to test with; `None` if there is one."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    asked = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Os}}"], capture_output=True, text=True, check=False
    )
    return None if asked.returncode == 0 else f"no Docker engine answers: {asked.stderr.strip()}"


def docker(*words: str, timeout: float = ANSWER_SECONDS) -> str:
    """Run `docker WORDS`; its output.

    Raises:
        EngineError: it failed.
    """
    ended = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, timeout=timeout)
    if ended.returncode:
        raise EngineError(f"docker {' '.join(words)}: {ended.stderr.strip() or ended.stdout.strip()}")
    return ended.stdout.strip()


def build(context: Path, dockerfile: Path, tag: str, arguments: Mapping[str, str]) -> None:
    """Build an image with the classic builder, which needs no plug-in of the command line."""
    given = [word for item in arguments.items() for word in ("--build-arg", "=".join(item))]
    options = ["--quiet", "--label", LABEL, "--tag", tag, "--file", str(dockerfile), *given]
    docker("build", *options, str(context), timeout=BUILD_SECONDS)


def remove_older(tag: str) -> None:
    """Remove images of that name with another tag."""
    tags = docker("images", "--format", "{{.Repository}}:{{.Tag}}", tag.partition(":")[0]).split()
    if older := [each for each in tags if each != tag]:
        docker("rmi", *older)


def image_exists(tag: str) -> bool:
    return bool(docker("images", "--quiet", tag))


def remove_leftovers() -> None:
    """Remove the containers and networks of runs whose process is gone; images stay, as a cache."""
    for name in _leftovers("ps", "--all"):
        docker("rm", "--force", "--volumes", name, timeout=120)
    for name in _leftovers("network", "ls"):
        docker("network", "rm", name)


def _leftovers(*listing: str) -> list[str]:
    form = f'{{{{.ID}}}} {{{{.Label "{LABEL_NAME}"}}}}'
    rows = docker(*listing, "--filter", f"label={LABEL_NAME}", "--format", form).splitlines()
    return [name for name, process in map(str.split, rows) if not Path(f"/proc/{process}").exists()]
