"""How requests, memory and CPU grow with size: what grows faster than linearly is a defect.

    python benchmarks/growth.py ["command to all" ...] [--json FILE] [--write docs/benchmarks.md]

Each subject does its work at sizes over two decades and more: counted, weighed and timed, each in a process
of its own, on one thread, with the fake SQS in that process and a clock that is turned by hand. Counts depend
on the versions of Python, Celery and its libraries, but not on the machine; CPU time does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import growth_page
from growth_gauges import GAUGES
from growth_subjects import SUBJECTS

RUN = Path(__file__).with_name("growth_run.py")
SECONDS = 600

#: A cost that is a fifth more from one decade to the next has not grown.
TOLERANCE = 0.08


def measured(name, size, gauge):
    """Figures of one unit; of memory, all bytes."""
    others = ("AWS_", "CELERY_", "PYTHON")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    environment |= {"PYTHONHASHSEED": "0", "PYTHONPATH": str(RUN.parents[1])}
    told = subprocess.run(
        [sys.executable, str(RUN), name, str(size), gauge],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if told.returncode:
        raise RuntimeError(f"{name}, {size}, {gauge}: {told.stdout}{told.stderr}")
    figures = json.loads(told.stdout)
    units = SUBJECTS[name].units_of(size)
    return {figure: value if figure == "bytes" else value / units for figure, value in figures.items()}


def exponent(first, last, sizes):
    """Of a power of the size: 0 does not grow, 1 grows in proportion."""
    return math.log(max(last, 1e-9) / max(first, 1e-9)) / math.log(sizes[-1] / sizes[0])


def defects(name, rows):
    """The counts of the last decade that grow faster than the subject allows."""
    size, last = rows[-1]
    before, first = [row for row in rows if row[0] * 10 <= size][-1]
    allowed, most = SUBJECTS[name].grows, SUBJECTS[name].most_requests
    for figure in ("requests", "calls", "bytecodes"):
        grew = exponent(first[figure], last[figure], (before, size))
        bounded = figure == "requests" and most is not None and last[figure] <= most * size**allowed
        if grew > allowed + TOLERANCE and not bounded:
            yield f"{name}: {figure} for one {SUBJECTS[name].unit} grow with the power {grew:.2f} of the size"


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", help=f"of {'; '.join(SUBJECTS)}; all by default")
    parser.add_argument("--json", type=Path, help="write the figures")
    parser.add_argument("--write", type=Path, help="write the tables into this page")
    parser.add_argument("--again", type=Path, help="measure nothing: write the page from such a JSON file")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"{'; '.join(sorted(unknown))}: not of {'; '.join(SUBJECTS)}")
    if arguments.subjects and arguments.write:
        parser.error("the page needs all subjects")
    return arguments


def main():
    arguments = parse()
    found = json.loads(arguments.again.read_text()) if arguments.again else measure(arguments.subjects)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    if arguments.write:
        growth_page.write(arguments.write, SUBJECTS, found)
    sys.exit("\n".join(each for name, rows in found.items() for each in defects(name, rows)) or None)


def measure(subjects):
    """By subject, the sizes and their figures."""
    found = {}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for name in subjects or SUBJECTS:
            asked = [(size, gauge) for size in SUBJECTS[name].sizes for gauge in GAUGES]
            figures = threads.map(lambda each, name=name: measured(name, *each), asked)
            rows = {size: {} for size in SUBJECTS[name].sizes}
            for (size, _), some in zip(asked, figures, strict=True):
                rows[size].update(some)
            found[name] = list(rows.items())
            print(f"{name}\n{growth_page.table(SUBJECTS[name], found[name])}\n", flush=True)
    return found


if __name__ == "__main__":
    main()
