"""The table of docs/reliability.md: each row is what a test saw.

A test that puts a fault in the way says so with the fixture `reliability`. `pytest --reliability FILE` runs
those tests, and writes their rows into that file's table.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.diary import Diary
    from support.worker import WorkerProcess

FIXTURE = "reliability"
BEGIN, END = "<!-- rows: pytest --reliability -->", "<!-- end of rows -->"
HEAD = """\
| fault | what was done | pools | messages | lost | run more than once | recovered in, s | test |
|---|---|---|---|---|---|---|---|"""


@dataclasses.dataclass(frozen=True)
class Row:
    """What one test saw of one fault, or several that differ in nothing but parameters.

    Attributes:
        pools: of the workers.
        messages: how many were sent.
        lost: how many neither ended as they should nor are in a queue.
        repeated: how many were begun more often than the task's own failures ask for.
        seconds: from the fault's end until work went on, at the worst; `None` where it never stopped.
        tests: ids of the tests, without their directory.
    """

    fault: str
    done: str
    pools: list[str]
    messages: int
    lost: int
    repeated: int
    seconds: float | None
    tests: list[str]

    def __add__(self, other: Row) -> Row:
        times = [row.seconds for row in (self, other) if row.seconds is not None]
        return dataclasses.replace(
            self,
            pools=sorted({*self.pools, *other.pools}),
            messages=self.messages + other.messages,
            lost=self.lost + other.lost,
            repeated=self.repeated + other.repeated,
            seconds=max(times, default=None),
            tests=sorted({*self.tests, *other.tests}),
        )

    @property
    def test(self) -> str:
        """The test's id, without its parameters if there were several."""
        return self.tests[0] if len(self.tests) == 1 else self.function

    @property
    def function(self) -> str:
        return self.tests[0].partition("[")[0]

    def __str__(self) -> str:
        seconds = "-" if self.seconds is None else f"{max(0.0, self.seconds):.1f}"
        cells = [
            self.fault,
            self.done,
            ", ".join(self.pools),
            self.messages,
            self.lost,
            self.repeated,
            seconds,
        ]
        return f"| {' | '.join(map(str, cells))} | `{self.test}` |"


def report(
    node: Any,
    diary: Diary,
    workers: Iterable[WorkerProcess],
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
        workers: those the test started.
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
    row = Row(
        fault,
        done,
        pools=sorted({worker.pool for worker in workers}),
        messages=len(sent),
        lost=max(0, len(undone) - kept),
        repeated=sum(noted["started"][key] - noted["failing"][key] > runs for key in sent),
        seconds=seconds,
        tests=[f"{node.path.name}::{node.name}"],
    )
    node.user_properties.append((FIXTURE, dataclasses.asdict(row)))
    assert not row.lost, f"of {undone}, {kept} are in a queue"


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
        table = "\n".join([HEAD, *map(str, merged(self._rows))])
        self._path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row for a fault and what was done about it in a test, whatever the test's parameters; sorted."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=attrgetter("function", "fault", "done")):
        found.setdefault((row.function, row.fault, row.done), []).append(row)
    return [functools.reduce(Row.__add__, same) for same in found.values()]


def ids_of(text: str) -> set[str]:
    """The ids in the last column of a written table."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    return {line.rsplit("`", 2)[1] for line in table.strip().splitlines()[2:]}
