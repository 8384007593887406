"""The table of docs/reliability.md: each row is what a test saw.

A test that puts a fault in the way says so with the fixture `reliability`. `pytest --reliability FILE` runs
those tests, and writes their rows into that file's table.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.diary import Diary

FIXTURE = "reliability"
BEGIN, END = "<!-- rows: pytest --reliability -->", "<!-- end of rows -->"
HEAD = """\
| fault | what was done | run more than once | recovered in, s |
|---|---|---|---|"""
SOON = 2.0
RIDDEN_OUT = f"Nothing ran more than once, and work went on within {SOON:g} s, after: "
UNHARMED = "Nothing ran more than once, and nothing stopped, after: "


@dataclasses.dataclass(frozen=True)
class Row:
    """What one test saw of one fault, or several that differ in nothing but parameters.

    Attributes:
        repeated: how many messages were begun more often than the task's own failures ask for.
        seconds: from the fault's end until work went on, at the worst; `None` where it never stopped.
    """

    fault: str
    done: str
    repeated: int
    seconds: float | None

    def __add__(self, other: Row) -> Row:
        times = [row.seconds for row in (self, other) if row.seconds is not None]
        repeated = self.repeated + other.repeated
        return dataclasses.replace(self, repeated=repeated, seconds=max(times, default=None))

    def __str__(self) -> str:
        seconds = "-" if self.seconds is None else f"{max(0.0, self.seconds):.1f}"
        return f"| {self.fault} | {self.done} | {self.repeated} | {seconds} |"


def report(
    node: Any,
    diary: Diary,
    fault: str,
    done: str,
    keys: Iterable[Any],
    *,
    seconds: float | None = None,
    ended: str = "done",
    kept: int = 0,
    runs: int = 1,
) -> None:
    """Add a row, and fail the test if a message was lost.

    Args:
        node: the test's.
        diary: where the tasks note `started` and `ended`, with their `key`.
        fault: the table's first column.
        done: its second.
        keys: of the messages that were sent.
        seconds: from the fault's end until work went on.
        ended: the note of a task that is done.
        kept: how many of those that are not done a queue still has, or a dead-letter queue.
        runs: how often a task may begin because it fails; those that note `failing` need not be told of.
    """
    sent = [repr(key) for key in keys]
    noted = {event: _count(diary, event) for event in ("started", "failing", ended)}
    undone = [key for key in sent if not noted[ended][key]]
    repeated = sum(noted["started"][key] - noted["failing"][key] > runs for key in sent)
    node.user_properties.append((FIXTURE, dataclasses.asdict(Row(fault, done, repeated, seconds))))
    assert len(undone) <= kept, f"of {undone}, {kept} are in a queue"


def _count(diary: Diary, event: str) -> Counter[str]:
    """How often tasks noted it, by their key's `repr`."""
    return Counter(repr(entry.get("key")) for entry in diary.entries(event))


class Table:
    """Collects the rows of a run, of its xdist workers too, and writes them at its end."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._rows: list[Row] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self._rows += [Row(**row) for name, row in report.user_properties if name == FIXTURE]

    def pytest_sessionfinish(self) -> None:
        before, _, rest = self._path.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        self._path.write_text(f"{before}{BEGIN}\n{shown(self._rows)}\n{END}{after}")


def shown(rows: Iterable[Row]) -> str:
    """The table, with a row for a fault and what was done; below it the faults that did little or no harm."""
    merged: dict[tuple[str, str], Row] = {}
    for row in rows:
        place = row.fault, row.done
        merged[place] = merged[place] + row if place in merged else row
    stopped = [row for row in merged.values() if row.repeated or row.seconds is not None]
    harmed = [row for row in stopped if row.repeated or (row.seconds or 0) > SOON]
    lines = sorted(map(str, harmed), key=str.lower)
    by_seconds = sorted(stopped, key=lambda row: row.seconds or 0)
    worst = {row.fault: f"{row.fault} ({max(0.0, row.seconds or 0):.1f} s)" for row in by_seconds}
    ridden_out = [worst[fault] for fault in _faults(stopped) - _faults(harmed)]
    unharmed = _faults(merged.values()) - _faults(stopped)
    return "\n".join([HEAD, *lines, "", _named(RIDDEN_OUT, ridden_out), "", _named(UNHARMED, unharmed)])


def _faults(rows: Iterable[Row]) -> set[str]:
    return {row.fault for row in rows}


def _named(beginning: str, faults: Iterable[str]) -> str:
    return f"{beginning}{'; '.join(sorted(faults, key=str.lower))}."


def faults_of(text: str) -> set[str]:
    """The faults of a written table."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    rows, _, named = table.partition(RIDDEN_OUT)
    names = {line.split(" | ")[0].removeprefix("| ") for line in rows.strip().splitlines()[2:]}
    ridden_out, _, unharmed = re.sub(r" \(\d+\.\d s\)", "", named).partition(UNHARMED)
    return names.union(*(each.strip().removesuffix(".").split("; ") for each in (ridden_out, unharmed))) - {
        ""
    }
