"""The status on a terminal, redrawn several times a second, so that leases run down between two updates.

Needs rich, an optional package; see `status.command`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import Table
from celery_sqs_visibility.operate.status.report import Status
from celery_sqs_visibility.operate.status.tables import queue_tables, sentences, worker_table
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.printable import printable

#: How many runs are shown, the longest first.
MAX_RUNS: Final = 10

#: How long an extension stays marked.
MARKED_SECONDS: Final = 4.0

#: A terminal at least this wide has room for long bars.
WIDE: Final = 120


@dataclass(frozen=True, slots=True)
class Lease:
    """A message's visibility timeout, as updates have shown it. Instants are in seconds since the epoch.

    Attributes:
        ends: when it ends.
        seconds: the longest time that it had left.
        extended: when an update showed that it was extended; `None` if none has.
    """

    ends: float
    seconds: float
    extended: float | None = None

    def seen(self, ends: float, now: float) -> Lease:
        """The lease after another update."""
        extended = now if ends > self.ends + 1 else self.extended
        return Lease(ends, max(self.seconds, ends - now), extended)

    def text(self, now: float, width: int, *, ascii_only: bool) -> Text:
        """A bar that runs down, with the seconds left."""
        left = self.ends - now
        if left <= 0:
            return Text(f"ended {duration_text(round(-left))} ago", "bold red")
        full, empty, mark = ("#", "-", "^") if ascii_only else ("█", "░", "▲")
        cells = min(width, max(1, round(width * left / max(self.seconds, 1.0))))
        marked = self.extended is not None and now - self.extended < MARKED_SECONDS
        style = "bold green" if marked else "yellow" if left < self.seconds / 4 else "green"
        text = Text(full * cells + empty * (width - cells), style)
        return text.append(f" {duration_text(round(left))}{f' {mark} extended' if marked else ''}")


class Board:
    """The contents of the terminal. The command's thread calls `note`, and rich's thread draws."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._taken: Status | None = None
        self._noted_at = 0.0
        self._leases: dict[str, Lease] = {}  # by message; replaced as a whole

    def note(self, taken: Status) -> None:
        """Show this status from now on."""
        now, leases = self._clock.wall(), {}
        for _, run in _runs(taken):
            ends = run["lease_ends"]
            if ends is not None:
                lease = self._leases.get(run["message_id"], Lease(ends, ends - now))
                leases[run["message_id"]] = lease.seen(ends, now)
        self._leases, self._taken, self._noted_at = leases, taken, now

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the board."""
        if (taken := self._taken) is None:
            yield Text("asking SQS, CloudWatch and the workers ...", "dim")
            return
        past = self._clock.wall() - self._noted_at
        taken = replace(taken, silent={node: age + past for node, age in taken.silent.items()})
        tables = queue_tables(taken, options.max_width)
        if taken.workers or taken.silent:
            tables.append(worker_table(taken))
        for table in tables:
            yield _drawn(table)
            yield Text()
        if runs := list(_runs(taken))[:MAX_RUNS]:
            yield self._drawn_runs(taken, runs, options)
            yield Text()
        for sentence in sentences(taken):
            yield Text(printable(sentence), "bold red" if "NO WORKER" in sentence else "")

    def _drawn_runs(
        self, taken: Status, runs: list[tuple[str, Mapping[str, Any]]], options: ConsoleOptions
    ) -> RichTable:
        now, wide = self._clock.wall(), options.max_width >= WIDE
        columns = ["worker", "queue", "task", "attempt", "runs for", "lease"]
        table = _empty(columns, [name == "attempt" for name in columns])
        for node, run in runs:
            lease = self._leases.get(run["message_id"])
            left = (
                Text("none: acknowledged early", "red")
                if lease is None
                else lease.text(now, 24 if wide else 8, ascii_only=options.ascii_only)
            )
            began = duration_text(round(max(0.0, now - run["began"])))
            cells = [node, run["queue"], run["task"] or "-", str(run["attempt"] or "-"), began]
            style = "dim" if node in taken.silent else ""
            table.add_row(*(Text(printable(str(cell)), style) for cell in cells), left)
        return table


def _runs(taken: Status) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The runs with their nodes, the longest first."""
    found = [(node, run) for node, runs in taken.runs.items() for run in runs if run["began"] is not None]
    yield from sorted(found, key=lambda each: each[1]["began"])


def _empty(columns: list[str], numeric: list[bool]) -> RichTable:
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, is_numeric in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
    return table


def _drawn(table: Table) -> RichTable:
    drawn = _empty(table.columns, table.numeric)
    for cells in table.texts:
        drawn.add_row(*(Text(cell, "bold yellow" if cell.startswith("silent") else "") for cell in cells))
    return drawn


def new_console(*, colours: bool) -> Console | None:
    """The terminal; `None` if standard output isn't one that can be redrawn."""
    console = Console(highlight=False) if colours else Console(color_system=None, highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


@contextmanager
def drawn_on(console: Console) -> Iterator[Callable[[Status], None]]:
    """Inside, the board is drawn. Yields a function that shows a status on it."""
    board = Board()
    with Live(board, console=console, refresh_per_second=4):
        yield board.note
