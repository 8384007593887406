"""The table of docs/reliability.md: each row is what a test saw.

A test that puts a fault in the way says so with the fixture `reliability`. `pytest --reliability FILE` writes
the rows into that file's table.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from support.diary import Diary

PROPERTY = "reliability"
BEGIN, END = "<!-- rows: pytest --reliability -->", "<!-- end of rows -->"
HEAD = """\
| fault | what was done | tasks | lost | run more than once | recovered in, s | test |
|---|---|---|---|---|---|---|"""


@dataclasses.dataclass(frozen=True)
class Row:
    """What one test saw of one fault.

    Attributes:
        tasks: how many were sent.
        lost: how many never ended as they should.
        repeated: how many were begun more often than the test's own failures asked for.
        seconds: from the fault's end until work went on; `None` where there is nothing to recover from.
    """

    fault: str
    done: str
    tasks: int
    lost: int
    repeated: int
    seconds: float | None
    test: str

    def __str__(self) -> str:
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        cells = [self.fault, self.done, self.tasks, self.lost, self.repeated, seconds, f"`{self.test}`"]
        return f"| {' | '.join(map(str, cells))} |"


def report(
    node: Any,
    diary: Diary,
    fault: str,
    done: str,
    keys: Iterable[Any],
    *,
    seconds: float | None = None,
    ended: str = "done",
) -> None:
    """Add a row, and fail the test if a task was lost.

    Args:
        node: the test's.
        diary: where the tasks note `started` and `ended`, with their `key`.
        fault: what happened.
        done: what was done about it.
        keys: of the tasks that were sent.
        seconds: from the fault's end until work went on.
        ended: what a task that was not lost notes.
    """
    sent = list(keys)
    lost = [key for key in sent if not diary.count(ended, key=key)]
    repeated = [key for key in sent if diary.count("started", key=key) > 1]
    row = Row(fault, done, len(sent), len(lost), len(repeated), seconds, node.nodeid.split("/")[-1])
    node.user_properties.append((PROPERTY, dataclasses.asdict(row)))
    assert not lost


class Table:
    """Collects the rows of a run, of its xdist workers too, and writes them at its end."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._rows: list[Row] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self._rows += [Row(**row) for name, row in report.user_properties if name == PROPERTY]

    def pytest_sessionfinish(self) -> None:
        text = self._path.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        rows = sorted(self._rows, key=lambda row: (row.test, row.fault))
        table = "\n".join([HEAD, *map(str, rows)])
        self._path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def rows_of(text: str) -> Mapping[str, str]:
    """The rows of a written table, by test."""
    _, _, rest = text.partition(BEGIN)
    table, _, _ = rest.partition(END)
    lines = table.strip().splitlines()[2:]
    return {line.rsplit("`", 2)[1]: line for line in lines}
