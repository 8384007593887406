"""The table of growth in docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from report import replaced
from results import short

FIGURES = ("requests", "calls", "bytecodes", "µs")
#: The page has what costs more at the largest size than at the least, by this factor.
GROWN = 1.1
PACKAGES = ("celery", "kombu")
MEGABYTE = 1e6


def write(path, subjects, found):
    """Put the table, and the run that it is of, between their markers."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    run = f"Counted on Python {platform.python_version()}, {versions}, on {os.cpu_count()} cores."
    page = replaced(path.read_text(), "run", run, "growth")
    path.write_text(replaced(page, "table", ends(subjects, found), "growth"))


def ends(subjects, found):
    """A line for each subject that has grown: its figures at the least and the largest size."""
    lines = [
        "| for one | sizes | requests | bytecodes | MB in all |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, rows in found.items():
        (least, first), (most, last) = rows[0], rows[-1]
        counted = ("requests", "bytecodes")
        if all(last[figure] <= GROWN * first[figure] for figure in counted):
            continue
        cells = [span(first[figure], last[figure]) for figure in counted]
        cells.append(span(first["bytes"] / MEGABYTE, last["bytes"] / MEGABYTE))
        lines.append(f"| {subjects[name].title} | {least:,} to {most:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def span(first, last):
    """Both figures, or one where they are the same."""
    first, last = short(first), short(last)
    return first if first == last else f"{first} to {last}"


def table(subject, rows):
    """All figures of a subject: a line for each size."""
    head = [subject.of, *FIGURES, "MB"]
    lines = [head, ["---:"] * len(head)]
    for size, figures in rows:
        cells = [short(figures[figure]) for figure in FIGURES]
        lines.append([f"{size:,}", *cells, short(figures["bytes"] / MEGABYTE)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
