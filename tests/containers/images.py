"""The images, without a registry: Debian by debootstrap, Python's packages from a wheelhouse.

Tags carry a hash of what goes in, so that a second run builds nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers.engine import BUILD_SECONDS, LABEL, build, docker, image_exists, remove_older

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / "build/containers"

SUITE = "bookworm"
DEBIAN = ("ca-certificates", "python3", "python3-venv", "redis-server")
WORKER_NEEDS = ("celery-sqs-visibility", "redis")
SERVER_NEEDS = ("moto[server]",)
#: What the host's Python does without, and Debian's 3.11.2 needs for redis.
OLDER_PYTHON_NEEDS = ("async-timeout",)


@dataclass(frozen=True)
class Images:
    """Tags: of the worker, and of the servers (SQS, its relay, Redis)."""

    worker: str
    servers: str


def digest(*parts: str | Path) -> str:
    """A short hash of texts, and of the contents of files."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.read_bytes() if isinstance(part, Path) else part.encode())
    return found.hexdigest()[:12]


def base() -> str:
    """Debian with Python; takes two minutes the first time.

    `CONTAINERS_BASE` names another image, with these packages and the host's minor version of Python.
    """
    if given := os.environ.get("CONTAINERS_BASE"):
        return given
    tag = f"csv-base:{digest(SUITE, *DEBIAN)}"
    if not image_exists(tag):
        if shutil.which("debootstrap") is None:
            pytest.skip("debootstrap is missing: apt-get install debootstrap")
        _debootstrap(tag)
    return tag


def _debootstrap(tag: str) -> None:
    tree = CACHE / "debian"
    shutil.rmtree(tree, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(DEBIAN)}", SUITE, str(tree)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=BUILD_SECONDS)
    packed = tree.with_suffix(".tar")
    subprocess.run(
        ["tar", "-C", str(tree), "--exclude=./var/cache/apt/*", "-cf", str(packed), "."], check=True
    )
    docker("import", "--change", f"LABEL {LABEL}", str(packed), tag, timeout=BUILD_SECONDS)
    packed.unlink()
    shutil.rmtree(tree)


def wheelhouse() -> Path:
    """Wheels of all that the images need but the package itself, for this Python, which is Debian's, too."""
    own, *others = WORKER_NEEDS
    needs = [*others, *SERVER_NEEDS, *OLDER_PYTHON_NEEDS]
    path = CACHE / f"wheels-{digest(ROOT / 'pyproject.toml', ROOT / 'constraints.txt', *needs)}"
    if not path.exists():
        pip(
            "wheel",
            "--constraint",
            str(ROOT / "constraints.txt"),
            "--wheel-dir",
            f"{path}.new",
            *needs,
            str(ROOT),
        )
        Path(f"{path}.new").rename(path)
    for old in path.glob(f"{own.replace('-', '_')}-*"):
        old.unlink()
    return path


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True, timeout=BUILD_SECONDS)


def images() -> Images:
    """Build those that do not exist yet."""
    debian = base()
    recipes = [ROOT / "examples/ecs/Dockerfile", *sorted((HERE / "proj").glob("*.py"))]
    sources = sorted((ROOT / "celery_sqs_visibility").rglob("*.py"))
    # Those of another checkout, whose tests may run beside these, are not older ones.
    checkout = digest(str(ROOT))[:6]
    worker = f"csv-worker-{checkout}:{digest(debian, ROOT / 'constraints.txt', *recipes, *sources)}"
    moto_server = ROOT / "celery_sqs_visibility/contacts/moto_server.py"
    server_files = [HERE / "servers.Dockerfile", HERE / "relay.py", moto_server]
    servers = f"csv-servers-{checkout}:{digest(debian, ROOT / 'constraints.txt', *server_files)}"
    if not image_exists(worker):
        _build(worker, debian, recipes[0], WORKER_NEEDS, [HERE / "proj"], own_package=True)
    if not image_exists(servers):
        _build(servers, debian, server_files[0], SERVER_NEEDS, server_files[1:])
    return Images(worker, servers)


def _build(
    tag: str,
    debian: str,
    dockerfile: Path,
    needs: Iterable[str],
    files: Iterable[Path],
    *,
    own_package: bool = False,
) -> None:
    """Build in a context of the files, `requirements.txt` and `wheels`."""
    context = CACHE / "context"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(wheelhouse(), context / "wheels")
    if own_package:
        pip("wheel", "--no-deps", "--wheel-dir", str(context / "wheels"), str(ROOT))
    (context / "requirements.txt").write_text("\n".join(needs) + "\n")
    for path in files:
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, context / path.name)
    build(context, dockerfile, tag, {"BASE": debian, "PIP_NO_INDEX": "1"})
    shutil.rmtree(context)
    remove_older(tag)
