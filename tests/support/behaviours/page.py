"""Writer of docs/fidelity.md: its tables come from the rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from support.behaviours.language import EVIDENCE, IMPLEMENTATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from support.behaviours.language import Behaviour, Evidence

BEGIN, END = "<!-- tables: make behaviours -->", "<!-- end of tables -->"

OPEN = """\
Nobody has recorded these answers, or an issue thread is all there is. The test shows that we survive the
opposite, or never come near it; - where nothing would help."""

NAMES = {"fake": "our fake", "moto": "moto", "ministack": "ministack", "localstack": "LocalStack"}


def write(path: Path, rows: Sequence[Behaviour]) -> None:
    """Put the tables between the page's markers."""
    before, _, rest = path.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n{tables(rows)}\n{END}{after}")


def is_current(text: str, rows: Sequence[Behaviour]) -> bool:
    """Whether the page has the tables of those rows."""
    return text.partition(BEGIN)[2].partition(END)[0].strip("\n") == tables(rows).strip("\n")


def tables(rows: Sequence[Behaviour]) -> str:
    """All that the page has of the rows."""
    relied_on = [row for row in rows if row.relied_on]
    unknown = [row for row in rows if row.evidence.kind in {"open", "reported"}]
    return "\n\n".join(
        [
            "## Who says so",
            _counts(rows),
            "## What is open",
            OPEN,
            _table(
                ("behaviour of SQS", "who says so", "test"),
                ([row.claim, _said(row.evidence), _test(row)] for row in unknown),
            ),
            "## Where implementations differ",
            f"Of {len(relied_on)} behaviours that the package relies on, not so in {_deviating(relied_on)}.",
        ]
    )


def _counts(rows: Sequence[Behaviour]) -> str:
    groups = {"rows": rows, "relied on": [row for row in rows if row.relied_on]}
    kinds = [Counter(row.evidence.kind for row in group) for group in groups.values()]
    said = [[f"{kind}: {text}", *(str(each[kind]) for each in kinds)] for kind, text in EVIDENCE.items()]
    return _table(("evidence", *groups), [*said, ["all", *(str(len(group)) for group in groups.values())]])


def _deviating(rows: Sequence[Behaviour]) -> str:
    counts = Counter(name for row in rows for name in row.deviations)
    return ", ".join(f"{NAMES[name]}: {counts[name]}" for name in IMPLEMENTATIONS)


def _said(evidence: Evidence) -> str:
    return f"{evidence.kind}: {_short(evidence.source)}, {evidence.date}"


def _short(source: str) -> str:
    """A test without its path, which the page tells once."""
    return f"`{source.rpartition('::')[2]}`" if "::" in source else source


def _test(row: Behaviour) -> str:
    return f"`{row.survives}`" if row.survives else "-"


def _table(head: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\r", "\\r").replace("\n", "\\n")
