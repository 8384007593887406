"""Run the worker tests of what SQS decides on every server that speaks SQS, and print a table of them.

`python -m support.servers [SERVER ...] [--modules NAMES] [--pytest=OPTIONS]`, in tests/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from support.sqs_servers import EMULATORS, INSTALLED_BY, ROOT, SERVERS, is_installed

#: Modules of tests/worker for every server, and further ones for emulators, which have SNS and S3, too.
OF_ALL = "ends error_visibility fifo leases"
OF_EMULATORS = "crashes dead_letters dead_letters_command etas fanout large_messages pause remote_control"

LOGS = ROOT / "build/servers"


class Line(NamedTuple):
    """A line of the table. `deviations` are ids of rows of behaviours.jsonl, one for each test that fails."""

    server: str
    seconds: float
    passed: int = 0
    failed: int = 0
    deviations: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether tests have passed, and all others were expected to fail."""
        return self.passed > 0 and not self.failed


def main() -> int:
    """Run all; 1 if something has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"all, if none is named: {SERVERS}")
    parser.add_argument("--modules", type=str.split, help="of tests/worker, instead of all that are for it")
    parser.add_argument("--pytest", type=str.split, default=[], help="further options of pytest")
    given = parser.parse_args()
    servers = given.servers or SERVERS
    lines = [run(name, given.modules or modules_of(name), given.pytest) for name in servers]
    sys.stdout.write(f"{table(lines)}\n")
    return int(not all(line.is_good for line in lines))


def modules_of(name: str) -> list[str]:
    """The names of the modules that are run there."""
    return [*OF_ALL.split(), *(OF_EMULATORS.split() if name in EMULATORS else ())]


def run(name: str, modules: list[str], options: list[str]) -> Line:
    """Run the tests on that server; what pytest says is kept in build/servers."""
    if not is_installed(name):
        sys.exit(f"{name} is not installed: {INSTALLED_BY}")
    LOGS.mkdir(parents=True, exist_ok=True)
    log, report = (LOGS / f"{name.replace(':', '-')}.{suffix}" for suffix in ("log", "xml"))
    report.unlink(missing_ok=True)
    paths = [f"tests/worker/test_{each}.py" for each in modules]
    fixed = ["--sqs-server", name, "--repeated", "without", f"--junit-xml={report}"]
    began = time.monotonic()
    with log.open("w") as output:
        command = [sys.executable, "-m", "pytest", *fixed, *options, *paths]
        subprocess.run(command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT)
    line = read(name, report, time.monotonic() - began)
    if not line.is_good:
        sys.stdout.write(log.read_text())
    sys.stdout.write(f"{name}: {line.passed} passed, {line.failed} failed in {line.seconds:.0f} s\n")
    sys.stdout.flush()
    return line


def read(name: str, report: Path, seconds: float) -> Line:
    """The line of a report in JUnit's format; of none, where pytest has made none."""
    if not report.exists():
        return Line(name, seconds)
    ends = Counter()
    deviations = []
    for case in ET.parse(report).iter("testcase"):
        found = case.find("failure"), case.find("error"), case.find("skipped")
        end = next((each for each in found if each is not None), None)
        ends["passed" if end is None else end.tag] += 1
        if end is not None and end.get("type") == "pytest.xfail":
            deviations.append(end.get("message").removeprefix("[NOTRUN] ").partition(":")[0])
    return Line(name, seconds, ends["passed"], ends["failure"] + ends["error"], tuple(sorted(deviations)))


def table(lines: list[Line]) -> str:
    """The lines as a table."""
    head = ("server", "passed", "failed", "s", "known deviations")
    cells = [
        (line.server, line.passed, line.failed, round(line.seconds), ", ".join(line.deviations) or "-")
        for line in lines
    ]
    return "\n".join(f"{a:<34} {b:>6} {c:>6} {d:>5}  {e}" for a, b, c, d, e in [head, *cells])


if __name__ == "__main__":
    sys.exit(main())
