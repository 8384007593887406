"""Two tables of docs/benchmarks.md: what kinds cost beside Celery's own share, and the bill by module."""

from __future__ import annotations

import platform
from collections import Counter

from cost_kinds import KINDS
from report import replaced

ITEMISED = "VisibilityTask, prefork"
MODULES = 10
UNITS = ("calls", "bytecodes", "instructions")


def write(path, costs, figures, versions):
    """Put both tables between their markers."""
    numbers = ", ".join(f"{name} {number}" for name, number in versions.items())
    counted = f"Counted on Python {platform.python_version()}, {numbers}."
    page = replaced(path.read_text(), "kinds", f"{counted}\n\n{kinds_table(figures)}", "cost")
    path.write_text(replaced(page, "bill", bill(costs[ITEMISED], costs[KINDS[ITEMISED].floor]), "cost"))


def kinds_table(figures):
    """A line for each kind: its figures, and how many times its floor it is."""
    units = [unit for unit in UNITS if any(unit in its for its in figures.values())]
    lines = [f"| | {' | '.join(units)} | bytecodes, times the floor |", f"|---|{'---|' * (len(units) + 1)}"]
    for kind, its in figures.items():
        floor = figures.get(KINDS[kind].floor)
        times = f"{its['bytecodes'] / floor['bytecodes']:.1f}" if floor else ""
        cells = [f"{its[unit]:,.0f}" if unit in its else "" for unit in units]
        lines.append(f"| {kind} | {' | '.join(cells)} | {times} |")
    return "\n".join(lines)


def bill(cost, floor):
    """What a message costs beyond the floor: a module's functions, and what they call in Python's library."""
    ours, theirs = cost.by_module(), floor.by_module()
    calls, bytecodes = (_minus(mine, its) for mine, its in zip(ours, theirs, strict=True))
    lines = ["| module | calls | bytecodes |", "|---|---|---|"]
    most = [module for module, _ in bytecodes.most_common(MODULES)]
    lines += [f"| `{module}` | {calls[module]:,.1f} | {bytecodes[module]:,.1f} |" for module in most]
    rest = [module for module in bytecodes if module not in most]
    lines.append(f"| {len(rest)} others | {_sum(calls, rest):,.1f} | {_sum(bytecodes, rest):,.1f} |")
    lines.append(f"| together | {calls.total():,.1f} | {bytecodes.total():,.1f} |")
    return "\n".join(lines)


def _minus(ours, theirs):
    return Counter({module: ours[module] - theirs[module] for module in {**ours, **theirs}})


def _sum(counter, modules):
    return sum(counter[module] for module in modules)
