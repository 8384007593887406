"""Checks of a release, up to the upload: `make release` prints one line for each, "ok" or what is to be done.

python tests/package/release.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
SECTION = re.compile(r"^## (\S+) - (\S+)$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class State:
    """What a release is made of.

    Attributes:
        version: the package's own.
        changelog: its text.
        changes: files that are not committed.
        tags: of the commit.
        distributions: names of the files in `dist/`.
    """

    version: str
    changelog: str
    changes: list[str]
    tags: list[str]
    distributions: list[str]


def findings(state: State) -> dict[str, str]:
    """What is to be done for each check; nothing, if it is passed."""
    return {
        "version": _version(state.version),
        "changelog": _changelog(state),
        "commit": f"commit {', '.join(state.changes)}" if state.changes else "",
        "tag": "" if f"v{state.version}" in state.tags else f"git tag v{state.version}",
        "distributions": _distributions(state),
    }


def _version(version: str) -> str:
    return "" if VERSION.fullmatch(version) else f"expected a version such as 0.1.0, got {version!r}"


def _changelog(state: State) -> str:
    section = SECTION.search(state.changelog)
    if not section or section[1] != state.version:
        return f"give CHANGELOG.md a first section '## {state.version} - DATE'"
    if not DATE.fullmatch(section[2]):
        return f"in CHANGELOG.md write the date in place of {section[2]!r}"
    return ""


def _distributions(state: State) -> str:
    name = f"celery_sqs_visibility-{state.version}"
    expected = sorted([f"{name}-py3-none-any.whl", f"{name}.tar.gz"])
    return "" if sorted(state.distributions) == expected else f"make package: dist/ is to have {expected}"


def present(root: Path) -> State:
    """The repository as it is."""
    source = (root / "celery_sqs_visibility/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    dist = root / "dist"
    return State(
        version=found[1] if found else "",
        changelog=(root / "CHANGELOG.md").read_text(),
        changes=[line[3:] for line in _git(root, "status", "--porcelain")],
        tags=_git(root, "tag", "--points-at", "HEAD"),
        distributions=[path.name for path in dist.iterdir()] if dist.exists() else [],
    )


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> int:
    found = findings(present(ROOT))
    for check, remedy in found.items():
        print(f"{'TO DO' if remedy else 'ok':<6} {check}{': ' if remedy else ''}{remedy}")  # noqa: T201
    if any(found.values()):
        return 1
    print("Nothing was uploaded. The upload: .venv/bin/twine upload dist/*")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
