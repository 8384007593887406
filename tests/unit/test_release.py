"""`make release` says what is to be done before the upload."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FORMS = ROOT / ".github/ISSUE_TEMPLATE"

spec = importlib.util.spec_from_file_location("package_release", ROOT / "tests/package/release.py")
release = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

READY = release.State(
    version="0.2.0",
    changelog="# Changes\n\n## 0.2.0 - 2026-12-01\n\n## 0.1.0 - 2026-11-24\n",
    changes=[],
    tags=["v0.2.0"],
    distributions=["celery_sqs_visibility-0.2.0.tar.gz", "celery_sqs_visibility-0.2.0-py3-none-any.whl"],
)


def test_a_release_that_is_ready_has_nothing_to_do():
    assert not any(release.findings(READY).values())


@pytest.mark.parametrize(
    ("change", "check", "remedy"),
    [
        ({"version": "0.2"}, "version", "expected a version such as 0.1.0, got '0.2'"),
        ({"changelog": "## 0.2.0 - unreleased"}, "changelog", "write the date in place of 'unreleased'"),
        ({"changelog": "## 0.1.0 - 2026-11-24"}, "changelog", "a first section '## 0.2.0 - DATE'"),
        ({"changes": ["README.md"]}, "commit", "commit README.md"),
        ({"tags": ["v0.1.0"]}, "tag", "git tag v0.2.0"),
        ({"distributions": ["celery_sqs_visibility-0.1.0.tar.gz"]}, "distributions", "make package"),
    ],
)
def test_each_check_names_its_remedy(change, check, remedy):
    assert remedy in release.findings(replace(READY, **change))[check]


def test_the_state_is_read_from_the_repository(tmp_path):
    (tmp_path / "celery_sqs_visibility").mkdir()
    (tmp_path / "celery_sqs_visibility/__init__.py").write_text('__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 0.3.0 - unreleased\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    with pytest.raises(subprocess.CalledProcessError):
        release.present(tmp_path)  # without a commit there is nothing to tag
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", *identity, "commit", "--quiet", "--allow-empty", "-m", "a"], cwd=tmp_path, check=True
    )
    state = release.present(tmp_path)
    assert (state.version, state.tags, state.distributions) == ("0.3.0", [], [])
    assert state.changes == ["CHANGELOG.md", "celery_sqs_visibility/"]


@pytest.mark.parametrize("path", sorted(FORMS.glob("*.yml")), ids=lambda path: path.stem)
def test_issue_forms_have_what_forms_need(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert all(link.keys() == {"name", "url", "about"} for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_the_forms_ask_for_the_doctor_and_for_the_answers_of_aws():
    assert "sqs doctor --json" in (FORMS / "bug.yml").read_text()
    assert "AWS_CONFORMANCE=1" in (FORMS / "ran-on-aws.yml").read_text()
