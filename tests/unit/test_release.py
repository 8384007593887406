"""`make release` says what is to be done before the upload."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

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
