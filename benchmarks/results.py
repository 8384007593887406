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


def table(results, figures=()):
    """A Markdown table of the medians of one measurement: of those figures, or of all."""
    figures = figures or list(dict.fromkeys(name for result in results for name in result.figures))
    lines = [["case", "contender", *figures], ["---", "---", *["---:"] * len(figures)]]
    for result in results:
        medians = [short(result.median(name)) if name in result.figures else "-" for name in figures]
        lines.append([result.case, result.contender, *medians])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_measurement(results):
    """In the order they were measured."""
    found = {}
    for result in results:
        found.setdefault(result.measurement, []).append(result)
    return found
