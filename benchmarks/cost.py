"""Cost of a task, counted: calls and bytecodes, and instructions where valgrind is installed.

    python benchmarks/cost.py ["VisibilityTask, prefork" ...] [--messages 1000] [--functions 25]
        [--bounds tests/unit/cost_bounds.json] [--write docs/benchmarks.md] [--no-instructions]

Each kind of work is done in a process of its own, on one thread, on a clock that is turned by hand. So
figures depend on the versions of Python, Celery and its libraries, but not on the machine and its load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import cost_page
from cost_instructions import build, counted, why_not
from cost_kinds import KINDS

#: Bytecodes are those of one version of Python, and so are bounds.
PYTHON = (3, 11)
PACKAGES = ("celery", "kombu", "billiard", "vine", "botocore", "urllib3")
MESSAGES = 1000
FEW = 200  # instructions take long to count
SECONDS = 300
RUN = Path(__file__).with_name("cost_run.py")


@dataclass(frozen=True)
class Cost:
    """Cost of one message, one extension or one idle minute, by function of a module."""

    calls: Counter
    bytecodes: Counter

    @property
    def figures(self):
        return {
            "calls": round(sum(self.calls.values()), 1),
            "bytecodes": round(sum(self.bytecodes.values()), 1),
        }

    def by_module(self):
        return (_by_module(self.calls), _by_module(self.bytecodes))


def _by_module(functions):
    modules = Counter()
    for (module, _), number in functions.items():
        modules[module] += number
    return modules


def count(kind, messages=MESSAGES):
    """The cost of that kind of work, on average of so many messages."""
    command, environment = _run(kind, messages)
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if told.returncode:
        raise RuntimeError(f"{kind}: {told.stdout}{told.stderr}")
    each = _units(kind, messages)
    rows = json.loads(told.stdout)
    calls = Counter({(module, name): (calls + into_c) / each for module, name, calls, into_c, _ in rows})
    return Cost(calls, Counter({(module, name): number / each for module, name, _, _, number in rows}))


def count_instructions(kind, messages=FEW):
    """How many instructions of the processor that takes."""
    command, environment = _run(kind, messages)
    return round(counted([*command, "--instructions"], environment) / _units(kind, messages))


def _units(kind, messages):
    return 1 if KINDS[kind].work == "idle" else messages


def _run(kind, messages):
    others = ("AWS_", "CELERY_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environment |= {"PYTHONHASHSEED": "0", "PYTHONPATH": str(RUN.parents[1])}
    return [sys.executable, str(RUN), kind, "--messages", str(messages)], environment


def versions():
    """Those on which figures depend; `celery` says of which supported version they are."""
    return {name: version(name) for name in PACKAGES}


def minor(number):
    return ".".join(number.split(".")[:2])


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=f"of {'; '.join(KINDS)}; all by default")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--functions", type=int, default=0, help="show so many functions of each kind")
    parser.add_argument("--no-instructions", action="store_true", help="they take a few minutes")
    parser.add_argument("--bounds", type=Path, help="write the figures as bounds of the unit test")
    parser.add_argument("--write", type=Path, help="write tables into this page")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"{'; '.join(sorted(unknown))}: not of {'; '.join(KINDS)}")
    if arguments.kinds and (arguments.bounds or arguments.write):
        parser.error("bounds and the page need all kinds")
    return arguments


def main():
    arguments = parse()
    costs, figures = {}, {}
    reason = "" if arguments.no_instructions else why_not()
    if reason:
        print(reason)
    for kind in arguments.kinds or KINDS:
        costs[kind] = count(kind, arguments.messages)
        figures[kind] = dict(costs[kind].figures)
        if not (reason or arguments.no_instructions):
            figures[kind]["instructions"] = count_instructions(kind)
        print(kind, figures[kind], flush=True)
        for function, number in costs[kind].bytecodes.most_common(arguments.functions):
            print(
                f"{number:10,.1f} bytecodes {costs[kind].calls[function]:8,.1f} calls  {'.'.join(function)}"
            )
    if arguments.bounds:
        write_bounds(arguments.bounds, figures)
    if arguments.write:
        cost_page.write(arguments.write, costs, figures, versions())


def write_bounds(path, figures):
    """Bounds of other versions of Celery stay as they are."""
    bounds = json.loads(path.read_text()) if path.exists() else {}
    bounds[minor(version("celery"))] = {"versions": versions(), "build": build(), "figures": figures}
    path.write_text(json.dumps(dict(sorted(bounds.items())), indent=1) + "\n")


if __name__ == "__main__":
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"costs are counted on Python {'.'.join(map(str, PYTHON))}: bytecodes of others differ")
    main()
