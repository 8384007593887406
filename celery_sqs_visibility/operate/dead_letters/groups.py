"""Groups of dead letters that have something in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from celery_sqs_visibility.operate.dead_letters.letter import SHORT_ID_CHARACTERS, cell, class_of
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import show_table

#: What letters can be grouped by: members of their summaries.
GROUPING: Final = ("exception", "task", "reason", "source_queue", "worker")


def grouping(text: str) -> tuple[str, ...]:
    """The type of an option: some of `GROUPING`, separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := set(names) - set(GROUPING):
        raise click.BadParameter(
            f"expected some of {', '.join(GROUPING)}, separated by commas, got {', '.join(sorted(unknown))!r}"
        )
    return names


def grouped(summaries: Iterable[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Group letters by these members of their summaries, the largest group first.

    A group has these members, `count`, the ages `oldest_seconds` and `newest_seconds`, and as `example` the
    id of its newest letter. Exceptions are compared by their class only.
    """
    groups: defaultdict[tuple[str | None, ...], list[dict[str, Any]]] = defaultdict(list)
    for letter in summaries:
        common = {**letter, "exception": class_of(letter["exception"] or "") or None}
        groups[tuple(common[name] for name in by)].append(letter)
    found = [_group(dict(zip(by, values, strict=True)), letters) for values, letters in groups.items()]
    return sorted(found, key=lambda group: (-group["count"], -group["oldest_seconds"]))


def _group(common: dict[str, str | None], letters: list[dict[str, Any]]) -> dict[str, Any]:
    def age(letter: dict[str, Any]) -> int:
        return int(letter["age_seconds"])

    newest = min(letters, key=age)
    return {
        **common,
        "count": len(letters),
        "oldest_seconds": max(map(age, letters)),
        "newest_seconds": age(newest),
        "example": newest["id"],
    }


def show_groups(groups: Iterable[dict[str, Any]], by: Sequence[str]) -> None:
    """Print a table, one group a line."""
    rows = [
        [
            *(cell(group[name]) for name in by),
            group["count"],
            duration_text(group["oldest_seconds"]),
            duration_text(group["newest_seconds"]),
            group["example"][:SHORT_ID_CHARACTERS],
        ]
        for group in groups
    ]
    show_table([*(name.replace("_", " ") for name in by), "count", "oldest", "newest", "example"], rows)
