"""The order of tests that run side by side: the longest begin first, the others run in between.

A long test that begins last is waited for alone. Tests that compute are spread among those that wait, for an
even load. The long ones are recorded in `tests/durations.json`, which `--durations-record` rewrites;
a test that is not recorded counts as a short one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).resolve().parents[1]
RECORD = TESTS / "durations.json"
#: Below, in seconds, a test or module is a short one and not recorded.
LONG = 5
#: So many tests run at once however busy the machine is; further ones begin only while it is not.
ALWAYS = 4
BUSY_LOAD = 3 * (os.cpu_count() or 1)
#: For how long, in seconds, a test waits for a machine that stays busy.
MOST_REST = 20


def waits(name: str) -> bool:
    """Whether the test spends its time waiting for real processes."""
    return name.startswith(("tests/worker/", "tests/e2e/"))


def piece(nodeid: str) -> str:
    """What one process runs without a break: a test that waits, or the whole module of another."""
    return nodeid if waits(nodeid) else nodeid.partition("::")[0]


def recorded_as(name: str) -> str:
    """The name of a piece in the record, in which the parameters of a test share a line."""
    return name.partition("[")[0]


def arrange(items: list[pytest.Item]) -> None:
    """Put the long pieces in the order of their length, and spread the others, of both kinds, among them."""
    seconds = json.loads(RECORD.read_text())
    pieces: dict[str, list[pytest.Item]] = {}
    for item in items:
        pieces.setdefault(piece(item.nodeid), []).append(item)
    lengths = {name: seconds.get(recorded_as(name), 0) for name in pieces}
    places: dict[str, float] = {}
    for kind in (True, False):
        short = [name for name in pieces if not lengths[name] and waits(name) is kind]
        places |= {name: index / len(short) for index, name in enumerate(short)}
    whole, begun = sum(lengths.values()), 0.0
    for name in sorted(pieces.keys() - places.keys(), key=lambda name: (-lengths[name], name)):
        places[name] = begun / whole
        begun += lengths[name]
    items[:] = [item for name in sorted(pieces, key=places.__getitem__) for item in pieces[name]]


class Scheduling(LoadScopeScheduling):
    """Gives tests that wait one by one to whoever is free, and other modules as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        return piece(nodeid)


class Rest:
    """Lets the further ones of the processes that test wait while the machine is busy."""

    def __init__(self, number: int) -> None:
        self._number = number

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        until = time.monotonic() + MOST_REST
        while (
            self._number >= ALWAYS
            and waits(item.nodeid)
            and os.getloadavg()[0] > BUSY_LOAD
            and time.monotonic() < until
        ):
            time.sleep(1)


class Record:
    """Collects the durations of a run, of its xdist workers too; writes the long ones at its end."""

    def __init__(self) -> None:
        self._tests: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] = self._tests.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        pieces: dict[str, float] = {}
        for nodeid, seconds in self._tests.items():
            pieces[piece(nodeid)] = pieces.get(piece(nodeid), 0) + seconds
        long: dict[str, int] = {}
        for name, seconds in sorted(pieces.items()):
            if seconds >= LONG:
                long[recorded_as(name)] = max(long.get(recorded_as(name), 0), round(seconds))
        RECORD.write_text(json.dumps(long, indent=1) + "\n")
