"""Images, once a run; a fleet for each scene; the table that `--accounts FILE` writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from containers import engine
from containers.account import Account
from containers.fleet import Fleet
from containers.images import images as build_images
from support import audits

BEGIN, END = "<!-- rows: make containers -->", "<!-- end of containers -->"
HEAD = """\
| scene | what was done | messages | run more than once | recovered in, s |
|---|---|---|---|---|"""


def pytest_addoption(parser):
    parser.addoption("--accounts", metavar="FILE", help="write the scenes' accounts into that file's table")


def pytest_sessionfinish(session):
    path = session.config.getoption("accounts", None)
    if path and (rows := session.config.stash.get(ROWS, [])):
        before, _, rest = Path(path).read_text().partition(BEGIN)
        Path(path).write_text("\n".join([before + BEGIN, HEAD, *rows, END]) + rest.partition(END)[2])


ROWS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def images():
    engine.remove_leftovers()
    return build_images()


@pytest.fixture
def make_fleet(images, credentials, tmp_path, request):
    """`make_fleet(visibility_timeout=5, ...)`: a fleet, removed after the test; its logs are audited."""
    fleets = []

    def make(**options):
        fleet = Fleet(images, tmp_path, **options)
        fleets.append(fleet)
        return fleet.__enter__()

    yield make
    for fleet in fleets:
        fleet.__exit__()
    if "breaks_rules" not in request.keywords:
        assert audits.check(tmp_path.glob("*.log")).messages


@pytest.fixture
def tell(request):
    """Close an account, print it, and make a row of it: `tell(account, scene, done, again=...)`."""

    def close(account: Account, scene: str, done: str, **allowed):
        row = account.close(**allowed)
        line = f"| {' | '.join([scene, done, *row.cells()])} |"
        print(f"{line} {row.spent:.0f} s")  # noqa: T201 - `make containers` shows it
        request.config.stash.setdefault(ROWS, []).append(line)

    return close
