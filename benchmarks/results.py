"""What was measured: medians and spreads, as a table and as JSON."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Result:
    """One contender in one case: for each figure its values, one a repeat; and the load before."""

    measurement: str
    case: str
    contender: str
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    load: float | None = field(default_factory=lambda: round(os.getloadavg()[0], 1))

    def add(self, **figures):
        """One repeat; `_` in a name stands for a space, and `_per_` for a slash."""
        for name, value in figures.items():
            self.figures[name.replace("_per_", "/").replace("_", " ")].append(float(value))

    def median(self, figure):
        return statistics.median(self.figures[figure])

    def as_plain(self):
        medians = {name: self.median(name) for name in self.figures}
        return {
            "measurement": self.measurement,
            "case": self.case,
            "contender": self.contender,
            "load": self.load,
            "runs": dict(self.figures),
            "medians": medians,
        }

    @classmethod
    def of_plain(cls, plain):
        return cls(*(plain[k] for k in ("measurement", "case", "contender", "runs")), plain.get("load"))


#: From here on, digits behind the point say nothing.
LARGE = 100


def short(value):
    """Three digits that matter."""
    if value == 0 or abs(value) >= LARGE:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell(values):
    """The median, and the least and the most where they differ."""
    middle, least, most = (short(pick(values)) for pick in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def load(result):
    return "-" if result.load is None else str(result.load)


def table(results):
    """A Markdown table of the results of one measurement."""
    figures = list(dict.fromkeys(name for result in results for name in result.figures))
    head = ["case", "contender", *figures, "load"]
    rows = [
        [
            r.case,
            r.contender,
            *(cell(r.figures[name]) if name in r.figures else "-" for name in figures),
            load(r),
        ]
        for r in results
    ]
    lines = [head, ["---", "---", *["---:"] * (len(figures) + 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_measurement(results):
    """In the order they were measured."""
    found = {}
    for result in results:
        found.setdefault(result.measurement, []).append(result)
    return found
