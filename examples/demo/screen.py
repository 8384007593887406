"""How the story looks: live in a terminal, and as a summary anywhere."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from demo.plan import DEAD, DONE
from demo.story import FAILED, HELD, HIDDEN, LOST, RUNNING, SENT, USD_PER_MILLION_REQUESTS, Row, Story

COLOURS = {
    SENT: "dim",
    HELD: "cyan",
    RUNNING: "bold blue",
    FAILED: "bold red",
    HIDDEN: "yellow",
    DONE: "bold green",
    DEAD: "bold red",
    LOST: "bold magenta",
}

#: A state that lasts, as it looks in a cell of the timeline.
LASTING = {SENT: " ", HELD: "░", RUNNING: "█", HIDDEN: "·", FAILED: "·", LOST: "?", DONE: " ", DEAD: " "}
#: An instant.
INSTANTS = {FAILED: "✗", DONE: "✓", DEAD: "†", LOST: "?"}
EXTENDED = "▲"

#: Seconds that a timeline shows at the least.
SHORTEST = 16.0
#: Columns of the table that are not the timeline's.
OTHER_COLUMNS = 61
NARROWEST = 24


def live(story: Story, now: float, width: int) -> RenderableType:
    cells = max(NARROWEST, width - OTHER_COLUMNS)
    seconds = max(SHORTEST, now - story.began)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column("task", width=19, no_wrap=True)
    table.add_column("now", width=27, no_wrap=True)
    table.add_column("runs", justify="right")
    table.add_column(f"{seconds:.0f} s", width=cells, no_wrap=True)
    for row in story.rows.values():
        timeline = _timeline(row, story.began, seconds / cells, cells, now)
        runs = str(len(row.starts) or "")
        table.add_row(row.plan.label, Text(_now(row, now), COLOURS[row.state]), runs, timeline)
    return Group(table, _legend(), Text(""), _requests(story))


def summary(story: Story) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("runs", justify="right")
    table.add_column("gaps, s", no_wrap=True)
    table.add_column("extended", justify="right")
    table.add_column("end", no_wrap=True)
    for row in story.rows.values():
        gaps = ", ".join(f"{gap:.1f}" for gap in row.gaps)
        extended = str(len(row.extensions) or "")
        end = Text.assemble((f"{row.state:<5}", COLOURS[row.state]), row.result or row.error or "")
        table.add_row(row.plan.label, str(len(row.starts)), gaps, extended, end)
    return Group(table, _requests(story), _totals(story))


def _now(row: Row, now: float) -> str:
    match row.state:
        case "hidden":
            return f"hidden, back in {max(0.0, row.back_at - now):.1f} s"
        case "running":
            again = ", again" if len(row.starts) > 1 else ""
            extended = f", extended {len(row.extensions)}x" if row.extensions else ""
            return f"running {now - row.starts[-1]:.1f} s{extended or again}"
        case "done":
            return f"done: {row.result}" if row.result else "done"
        case "dead" | "failed":
            return f"{row.state}: {row.error}"
        case state:
            return state


def _timeline(row: Row, began: float, step: float, cells: int, now: float) -> Text:
    """A cell shows what happened in its time, or else how things were at its end."""
    text = Text()
    for cell in range(cells):
        start = began + cell * step
        if start >= now:
            break
        text.append(*_cell(row, start, start + step))
    return text


def _cell(row: Row, start: float, end: float) -> tuple[str, str]:
    before = [state for at, state in row.states if at < end]
    instants = [state for at, state in row.states if start <= at < end and state in INSTANTS]
    if instants:
        return INSTANTS[instants[-1]], COLOURS[instants[-1]]
    if any(start <= at < end for at in row.extensions):
        return EXTENDED, "bold cyan"
    if any(start <= at < end for at in row.starts):
        return LASTING[RUNNING], COLOURS[RUNNING]
    state = before[-1] if before else SENT
    return LASTING[state], COLOURS[state]


def _legend() -> Text:
    legend = Text("  ")
    for mark, state, word in (
        (LASTING[HELD], HELD, "received"),
        (LASTING[RUNNING], RUNNING, "running"),
        (EXTENDED, HELD, "extended"),
        (INSTANTS[FAILED], FAILED, "failed"),
        (LASTING[HIDDEN], HIDDEN, "hidden"),
        (INSTANTS[DONE], DONE, "done"),
        (INSTANTS[DEAD], DEAD, "dead"),
    ):
        legend.append(mark, COLOURS[state]).append(f" {word}   ", "dim")
    return legend


def _requests(story: Story) -> Text:
    total = story.total_requests
    text = Text(f"{total} requests to SQS", "bold")
    text.append(f", USD {story.cost:.7f} at {USD_PER_MILLION_REQUESTS:.2f} per million\n", "not bold")
    actions = ", ".join(f"{action} {count}" for action, count in story.requests.most_common())
    return text.append(actions, "dim not bold")


def _totals(story: Story) -> Text:
    rows = story.rows.values()
    runs = sum(len(row.starts) for row in rows)
    done = sum(row.state == DONE for row in rows)
    dead = sum(row.state == DEAD for row in rows)
    text = f"{len(rows)} tasks, {runs} runs: {done} done, {dead} dead."
    if rows:
        per_task = story.total_requests / len(rows)
        text += (
            f" {per_task:.1f} requests a task, sending, retries and idle polls included:"
            f" USD {per_task * USD_PER_MILLION_REQUESTS:.2f} for a million such tasks."
        )
    return Text(text)
