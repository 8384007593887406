"""What `make package` has built into dist/ is complete and installs; only `make package` runs this."""

import re
import shutil
import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import celery_sqs_visibility

ROOT = Path(__file__).resolve().parents[2]
NAME = f"celery_sqs_visibility-{celery_sqs_visibility.__version__}"
INSTALLED = [ROOT / ".venvs/wheel", ROOT / ".venvs/sdist"]

#: A Markdown link's target, inline or by reference.
LINK = re.compile(r"\]\(([^)\s]+)|^\[[^\]]+\]: *(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def metadata():
    """What the package index shows."""
    with zipfile.ZipFile(ROOT / f"dist/{NAME}-py3-none-any.whl") as wheel:
        return Parser().parsestr(wheel.read(f"{NAME}.dist-info/METADATA").decode())


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The sdist, unpacked, with this repository's environment."""
    path = tmp_path_factory.mktemp("sdist")
    run("tar", "-xzf", str(ROOT / f"dist/{NAME}.tar.gz"), cwd=path)
    (path / NAME / ".venv").symlink_to(ROOT / ".venv")
    return path / NAME


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_index_links_to_one_address(metadata):
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    assert all(url.startswith(urls["Source"]) for url in urls.values())
    # Here is where the README's own links lead, of which none is relative any more.
    links = [inline or reference for inline, reference in LINK.findall(metadata.get_payload())]
    assert f"{urls['Source']}/blob/main/CHANGELOG.md" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_wheel_has_the_package_and_nothing_else():
    with zipfile.ZipFile(ROOT / f"dist/{NAME}-py3-none-any.whl") as wheel:
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = (ROOT / "celery_sqs_visibility").rglob("*")
    assert files == {str(path.relative_to(ROOT)) for path in package if path.suffix in {".py", ".typed"}}
    assert "celery_sqs_visibility/py.typed" in files


def test_the_sdist_has_what_the_repository_has(unpacked):
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("needs the repository, and git")
    tracked = run("git", "ls-files", "--cached", cwd=ROOT).splitlines()
    assert [name for name in tracked if (ROOT / name).exists() and not (unpacked / name).exists()] == []


@pytest.mark.timeout(1200)  # two commands of up to ten minutes
def test_make_finds_its_files_in_the_sdist(unpacked):
    run("make", "--silent", "check", cwd=unpacked)
    run(
        ".venv/bin/python", "-m", "pytest", "-q", "tests/unit/test_docs.py", "tests/unit/policy", cwd=unpacked
    )


@pytest.mark.parametrize("environment", INSTALLED, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "code",
    [
        "import celery_sqs_visibility",
        "from celery_sqs_visibility import VisibilityTask, publish_batch",
        "import celery_sqs_visibility as face; [getattr(face, name) for name in face.__all__]",
        # Imports nothing of ours: kombu finds the transport by its name.
        "from kombu import Connection; print(Connection(transport='celery_sqs_visibility').transport_cls)",
    ],
)
def test_it_imports_without_extras(environment, code, tmp_path):
    run(str(environment / "bin/python"), "-I", "-W", "error", "-c", code, cwd=tmp_path)
