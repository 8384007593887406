"""The tables and plots of docs/growth.md."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from plots import bars
from report import replaced
from results import Result, short

FIGURES = ("requests", "calls", "bytecodes", "µs")
PACKAGES = ("celery", "kombu")
PLOTTED = "bytecodes"
MEGABYTE = 1e6


def write(path, subjects, found):
    """Put each table between its markers, and the plots beside the page."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    run = f"Counted on Python {platform.python_version()}, {versions}; timed on {os.cpu_count()} cores"
    run += f", the load was {os.getloadavg()[2]:.1f}."
    page = replaced(path.read_text(), "run", run, "growth")
    for group in dict.fromkeys(subject.group for subject in subjects.values()):
        parts, results = [], []
        for name, rows in found.items():
            if subjects[name].group == group:
                parts += [f"**{subjects[name].title}**", table(subjects[name], rows)]
                results += results_of(subjects[name], rows)
        (folder / f"{group}.svg").write_text(bars(results, PLOTTED, TITLE))
        plot = f"![{TITLE}]({folder.name}/{group}.svg)"
        page = replaced(page, group, "\n\n".join([*parts, plot]), "growth")
    path.write_text(page)


TITLE = "Bytecodes for one unit, by size: where bars are as long as each other, the whole grows in proportion"


def results_of(subject, rows):
    """As the plots have them: a bar for each size."""
    return [
        Result("growth", subject.title, f"{size:,}", {PLOTTED: [figures[PLOTTED]]}) for size, figures in rows
    ]


def table(subject, rows):
    """A line for each size."""
    head = [subject.of, *(f"{figure}" for figure in FIGURES), "MB"]
    lines = [head, ["---:"] * len(head)]
    for size, figures in rows:
        cells = [short(figures[figure]) for figure in FIGURES]
        lines.append([f"{size:,}", *cells, short(figures["bytes"] / MEGABYTE)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
