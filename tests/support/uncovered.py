"""Lines and branches that no test runs, by function, each with its reason.

`make coverage` writes the shares into the page, and prints functions without a reason. Reasons are kept in
tests/uncovered.json, by file and function.
"""

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
PAGE = ROOT / "docs/contributing/tests.md"

#: What the report and the reasons call a module's own lines.
MODULE = ""

SHARES = """\
On {system}, Python {python} and Celery {celery} all tests, in all their processes and threads, ran
{lines} lines and {branches} branches of the package.
"""
#: The part of the page that is written.
WRITTEN = re.compile(r"(?<=<!-- made by `make coverage` -->\n).*?(?=<!-- end -->)", re.DOTALL)


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


def unexplained(report, why):
    """Functions that are not run as a whole, and have no reason: each with its file and what is not run."""
    for path, file in sorted(report["files"].items()):
        name = path.removeprefix(f"{PACKAGE.name}/")
        places = defaultdict(list)
        for function, found in file["functions"].items():
            # A setter is "name@line", as its getter is.
            places[function.partition("@")[0]].extend(not_run(found))
        for function, of_function in places.items():
            if of_function and function not in why.get(name, {}):
                yield f"{name}: {function or '(module)'}: {', '.join(of_function)}"


def share(run, all_of_them):
    return f"{run:,} of {all_of_them:,} ({100 * run / all_of_them:.2f} %)"


def shares(report):
    totals = report["totals"]
    return SHARES.format(
        system=platform.system(),
        python=platform.python_version(),
        celery=version("celery"),
        lines=share(totals["covered_lines"], totals["num_statements"]),
        branches=share(totals["covered_branches"], totals["num_branches"]),
    )


if __name__ == "__main__":
    report = json.loads(REPORT.read_text())
    PAGE.write_text(WRITTEN.sub(lambda _: shares(report), PAGE.read_text()))
    lines = list(unexplained(report, reasons()))
    sys.stdout.write(
        "\n".join([*lines, f"{len(lines)} functions are not run as a whole, and have no reason\n"])
    )
