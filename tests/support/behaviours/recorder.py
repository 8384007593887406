"""Recorder: writes into rows what implementations answered, and of AWS the answer itself."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from support.behaviours.answers import in_words, matches, told
from support.behaviours.language import read_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.behaviours.language import Behaviour

    Answers = Mapping[str, Mapping[str, Any]]


def disagreements(implementation: str, rows: Sequence[Behaviour], came: Answers) -> list[str]:
    """What is not as the rows say of that implementation: new deviations, and those that are gone."""
    found = []
    for row in rows:
        if row.id in came and not matches(row.expected_of(implementation), came[row.id]):
            listed = " (listed)" if implementation in row.deviations else ""
            found.append(
                f"{row.id}: expected {in_words(row.expected_of(implementation))}{listed}, "
                f"got {json.dumps(told(row.answer, came[row.id]))}"
            )
        elif row.id in came and implementation in row.deviations and matches(row.answer, came[row.id]):
            found.append(f"{row.id}: no deviation any more")
    return found


def record(path: Path, implementation: str, came: Answers) -> None:
    """Write an implementation's answers into the rows of the file; "aws" makes them the expected ones."""
    lines = []
    for row, text in zip(read_rows(path), path.read_text().splitlines(), strict=True):
        entry = json.loads(text)
        if row.id in came and implementation == "aws":
            _record_aws(row, entry, came[row.id])
        elif row.id in came:
            _record_deviation(implementation, row, entry, came[row.id])
        lines.append(json.dumps(entry, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n")


def _record_deviation(
    implementation: str, row: Behaviour, entry: dict[str, Any], came: Mapping[str, Any]
) -> None:
    if matches(row.answer, came):
        entry["deviations"].pop(implementation, None)
    elif implementation not in row.deviations or not matches(row.deviations[implementation].answer, came):
        entry["deviations"][implementation] = {"answer": told(row.answer, came)}
        entry["deviations"] = dict(sorted(entry["deviations"].items()))


def _record_aws(row: Behaviour, entry: dict[str, Any], came: Mapping[str, Any]) -> None:
    source = "our own run against AWS"
    if matches(row.answer, came):
        source += f"; before: {row.evidence.source.removeprefix(f'{source}; before: ')}"
    else:
        entry["answer"] = told(row.answer, came)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    entry["evidence"] = {"class": "recorded", "source": source, "date": today}
