"""Lines and branches that no test runs, by function, each with its reason.

`make coverage` writes the page. Reasons are kept in tests/uncovered.json, by file and function.
"""

from __future__ import annotations

import ast
import itertools
import json
import platform
import re
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "celery_sqs_visibility"
REPORT = ROOT / "build/coverage/report.json"
REASONS = ROOT / "tests/uncovered.json"
PAGE = ROOT / "docs/contributing/coverage.md"

#: The reason of a function that has none yet.
MISSING = "?"
#: What the report and the reasons call a module's own lines.
MODULE = ""

HEAD = """\
On {system}, Python {python} and Celery {celery} all tests, in all their processes and threads, ran
{lines} lines and {branches} branches of the package.

| file | function | lines and branches | reason |
|---|---|---|---|
"""
#: The part of the page that is written.
WRITTEN = re.compile(r"(?<=<!-- made by `make coverage` -->\n).*(?=<!-- end -->)", re.DOTALL)


def reasons():
    """Of each file, by function: why some of it is not run."""
    return json.loads(REASONS.read_text())


def functions(path):
    """Qualified names of a file's functions, as coverage.py names them."""

    def below(node, names):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if not isinstance(child, ast.ClassDef):
                    yield ".".join((*names, child.name))
                yield from below(child, (*names, child.name))
            else:
                yield from below(child, names)

    return {MODULE, *below(ast.parse(path.read_text()), ())}


def ranges(lines):
    """Lines as text: "3-5, 8"."""
    for _, run in itertools.groupby(enumerate(lines), lambda each: each[1] - each[0]):
        first, *rest = (line for _, line in run)
        yield f"{first}-{rest[-1]}" if rest else str(first)


def not_run(function):
    """Lines and branches of a function of the report; of lines that were not run, no branches."""
    missing = set(function["missing_lines"])
    yield from ranges(sorted(missing))
    for start, end in function["missing_branches"]:
        if start not in missing:
            yield f"{start}→{end if end > 0 else ''}"


def rows(report, why):
    """Of each function that is not run as a whole: its file, its name, its lines and branches, the reason."""
    for path, file in sorted(report["files"].items()):
        name = path.removeprefix(f"{PACKAGE.name}/")
        places = defaultdict(list)
        for function, found in file["functions"].items():
            # A setter is "name@line", as its getter is.
            places[function.partition("@")[0]].extend(not_run(found))
        for function, of_function in places.items():
            if of_function:
                yield name, function, ", ".join(of_function), why.get(name, {}).get(function, MISSING)


def share(run, all_of_them):
    return f"{run:,} of {all_of_them:,} ({100 * run / all_of_them:.2f} %)"


def written(report, why):
    totals = report["totals"]
    head = HEAD.format(
        system=platform.system(),
        python=platform.python_version(),
        celery=version("celery"),
        lines=share(totals["covered_lines"], totals["num_statements"]),
        branches=share(totals["covered_branches"], totals["num_branches"]),
    )
    table = (
        f"| `{file}` | {f'`{function}`' if function else '(module)'} | {places} | {reason} |\n"
        for file, function, places, reason in rows(report, why)
    )
    return head + "".join(table)


if __name__ == "__main__":
    listed = written(json.loads(REPORT.read_text()), reasons())
    PAGE.write_text(WRITTEN.sub(lambda _: listed, PAGE.read_text()))
    without = listed.count(f"| {MISSING} |\n")
    sys.stdout.write(
        f"{without} functions are not run as a whole, for no reason given: {PAGE.relative_to(ROOT)}\n"
    )
