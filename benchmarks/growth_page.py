"""The tables and plots of docs/growth.md."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from growth_plot import charts
from report import replaced
from results import short

FIGURES = ("requests", "calls", "bytecodes", "µs")
PACKAGES = ("celery", "kombu")
PLOTTED = ("requests", "bytecodes")
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
        shown = {name: rows for name, rows in found.items() if subjects[name].group == group}
        parts, plotted = [], []
        for name, rows in shown.items():
            parts += [f"**{subjects[name].title}**", table(subjects[name], rows)]
            plotted.append((subjects[name].title, whole(subjects[name], rows)))
        (folder / f"{group}.svg").write_text(charts(plotted, TITLE))
        plot = f"![{TITLE}]({folder.name}/{group}.svg)"
        page = replaced(page, group, "\n\n".join([*parts, plot]), "growth")
    path.write_text(page)


TITLE = "All of it, against size: what is no steeper than the grey line grows in proportion, or less"


def whole(subject, rows):
    """By figure, the sizes and what all units take together."""
    panels = {
        figure: [(size, figures[figure] * subject.units_of(size)) for size, figures in rows]
        for figure in PLOTTED
    }
    return {**panels, "MB": [(size, figures["bytes"] / MEGABYTE) for size, figures in rows]}


def table(subject, rows):
    """A line for each size."""
    head = [subject.of, *(f"{figure}" for figure in FIGURES), "MB"]
    lines = [head, ["---:"] * len(head)]
    for size, figures in rows:
        cells = [short(figures[figure]) for figure in FIGURES]
        lines.append([f"{size:,}", *cells, short(figures["bytes"] / MEGABYTE)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
