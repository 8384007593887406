"""Run the tests of other packages on this transport, and write the table of docs/compatibility.md.

`make others`: from `tests`, by the interpreter of the environment that has these packages. Their tests come
from their sdists, unchanged. `others.point` leads them to our transport.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build/others"
PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- rows: make others -->", "<!-- end of others -->"
HEAD = """\
| package | version | tests | passed | left out, and why |
|---|---|---|---|---|"""
RUN_SECONDS = 900


@dataclass(frozen=True)
class Suite:
    """The tests of a package's sdist.

    Attributes:
        tests: the files or directories, as pytest takes them.
        unfit: tests that cannot apply, by a part of their ids, and why.
    """

    package: str
    tests: list[str]
    unfit: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def tree(self) -> Path:
        """The unpacked sdist; downloaded the first time."""
        name = f"{self.package.replace('-', '_')}-{self.version}"
        if not (BUILD / name).exists():
            wanted = [f"{self.package}=={self.version}", "--no-binary", self.package, "--no-deps"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(BUILD), *wanted]
            subprocess.run(pip, check=True, timeout=RUN_SECONDS)
            with tarfile.open(BUILD / f"{name}.tar.gz") as packed:
                packed.extractall(BUILD, filter="data")
        return BUILD / name

    def run(self) -> str:
        """A row of the table.

        Raises:
            SystemExit: a test failed that should not.
        """
        tree, report = self.tree(), BUILD / f"{self.package}.xml"
        options = ["-c", str(HERE / "suites.ini"), "--rootdir", str(tree), "-p", "others.point", "-q"]
        options += [f"--junitxml={report}", "-p", "no:cacheprovider"]
        options += ["-k", " and ".join(f"not {each}" for each in self.unfit)] if self.unfit else []
        search = os.pathsep.join(map(str, (tree, ROOT / "tests")))
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *self.tests],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": search},
            check=False,
            timeout=RUN_SECONDS,
        )
        passed = counted(report)["passed"]
        files = ", ".join(f"`{Path(each).name}`" for each in self.tests)
        why = "; ".join(f"`{name}`: {reason}" for name, reason in self.unfit.items()) or "-"
        return f"| {self.package} | {self.version} | {files} | {passed} | {why} |"


def counted(report: Path) -> Counter[str]:
    """How many tests passed, were skipped and failed.

    Raises:
        SystemExit: one has failed.
    """
    counts: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
        counts[next(iter(outcomes), "passed")] += 1
    if counts["failure"] or counts["error"]:
        raise SystemExit(f"{report.stem}: {counts['failure'] + counts['error']} failed")
    return counts


SUITES = [
    Suite(
        "kombu",
        [str(HERE / "kombu_cases.py")],
        {
            "test_direct_routing_keys": "a message to no queue is an error here, not discarded",
            "test_topic": "there are no topic exchanges",
            "test_publish_empty_exchange": "neither",
            "test_failover_switches_to_alternate_url": "it asks for the port before the transport has read "
            "the URL; it does switch",
        },
    ),
    Suite(
        "celery-redbeat",
        ["tests"],
        {
            "test_either_or": "it compares with a broker URL of its own",
            "test_schedule_includes_current_and_next": "it measures fractions of a second, without a "
            "broker, and fails on a busy machine",
            "test_due_next": "likewise",
            "test_due_now": "with Celery 5.7 it fails on every transport, which adds a header",
        },
    ),
    Suite("opentelemetry-instrumentation-celery", ["tests"]),
]
#: Packages with nothing to test them with in their sdists, in a real worker.
CHECKS = HERE / "check_packages.py"


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    rows = [suite.run() for suite in SUITES]
    subprocess.run([sys.executable, "-m", "pytest", "-W", "default", str(CHECKS)], cwd=ROOT, check=True)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text("\n".join([before + BEGIN, HEAD, *rows, END]) + rest.partition(END)[2])


if __name__ == "__main__":
    main()
