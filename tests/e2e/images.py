"""The image of the pytest-celery tests' containers, without a registry: see tests/containers/images.py."""

from __future__ import annotations

import shutil
from pathlib import Path

from containers.engine import BUILD_SECONDS, LABEL_NAME, docker, image_exists, remove_older
from containers.images import CACHE, OLDER_PYTHON_NEEDS, ROOT, base, digest, pip

HERE = Path(__file__).resolve().parent
NEEDS = ("celery-sqs-visibility", "moto[server]", "psutil", "pycurl", "pytest-celery", "redis")


def image() -> str:
    """The tag; built, if what goes in has changed."""
    debian = base()
    files = [HERE / "Dockerfile", ROOT / "celery_sqs_visibility/contacts/moto_server.py"]
    sources = sorted((ROOT / "celery_sqs_visibility").rglob("*.py"))
    tag = f"csv-e2e:{digest(debian, ROOT / 'constraints.txt', *NEEDS, *files, *sources)}"
    if image_exists(tag):
        return tag
    context = CACHE / f"e2e-{digest(ROOT / 'pyproject.toml', ROOT / 'constraints.txt', *NEEDS)}"
    wheels = context / "wheels"
    if not wheels.exists():
        limits = ["--constraint", str(ROOT / "constraints.txt"), "--wheel-dir", f"{wheels}.new"]
        pip("wheel", *limits, *NEEDS[1:], *OLDER_PYTHON_NEEDS, str(ROOT))
        Path(f"{wheels}.new").rename(wheels)
    for old in wheels.glob("celery_sqs_visibility-*"):
        old.unlink()
    pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    (context / "requirements.txt").write_text("\n".join(NEEDS) + "\n")
    shutil.copy(files[1], context)
    # Containers inherit the label, and pytest-docker-tools removes them: init's, they are nobody's leftovers.
    options = ["--quiet", "--label", f"{LABEL_NAME}=1", "--build-arg", f"BASE={debian}"]
    docker("build", *options, "--tag", tag, "--file", str(files[0]), str(context), timeout=BUILD_SECONDS)
    remove_older(tag)
    return tag
