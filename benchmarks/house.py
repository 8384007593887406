"""Size of the package: files, functions, modules and docstrings to look at, and five walks.

    python benchmarks/house.py [--no-walks] [--files]

Lines of a function are counted from its `def`, without its docstring. `house_walks.py` has the walks.
"""

from __future__ import annotations

import argparse
import ast
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "celery_sqs_visibility"
SMALL_LINES = 60
FIRST_WORDS = re.compile(r"(What|Which|Who|That|Has)\b")


@dataclass(frozen=True)
class Module:
    """A module's source.

    Attributes:
        path: below the package, as "worker/request.py".
        name: as "celery_sqs_visibility.worker.request".
    """

    path: str
    name: str
    text: str

    @property
    def lines(self):
        return self.text.count("\n")

    @property
    def tree(self):
        return ast.parse(self.text)


def modules(root):
    """All of the package at this path."""
    return [
        Module(str(path.relative_to(root)), _name(path.relative_to(root)), path.read_text())
        for path in sorted(root.rglob("*.py"))
    ]


def _name(path):
    parts = path.with_suffix("").parts
    return ".".join([PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def percentile(numbers, share):
    """The least number that so large a share of them does not exceed; 0 of none."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def function_lines(tree):
    """Lines of each function, those within functions included."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.end_lineno - node.lineno + 1 - _docstring_lines(node) for node in functions]


def _docstring_lines(node):
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


def imported(tree, names):
    """The modules, of those names, that a module imports, at its top or in its functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= below & names or {node.module}
    return found & names


def importers(package):
    """By name of a module: the names of those that import it."""
    names = {module.name for module in package}
    found = defaultdict(set)
    for module in package:
        for name in imported(module.tree, names):
            found[name].add(module.name)
    return found


def relays(package):
    """Modules with one importer and few lines, each with that importer."""
    found = importers(package)
    return {
        module.path: next(iter(found[module.name]))
        for module in package
        if module.lines < SMALL_LINES and len(found[module.name]) == 1
    }


def asking(module):
    """Docstrings that begin with a word for a thing in place of its name: line and first line of each."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(module.tree):
        if isinstance(node, kinds) and FIRST_WORDS.match(text := ast.get_docstring(node) or ""):
            yield node.body[0].lineno, text.partition("\n")[0]


def table(rows):
    """Rows of text, the first of which is the heading, in columns."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join("  ".join([name.ljust(first), *map(str.rjust, cells, others)]) for name, *cells in rows)


def sizes(package):
    """The table of figures."""
    lines = [module.lines for module in package]
    largest = max(package, key=lambda module: module.lines)
    functions = [length for module in package for length in function_lines(module.tree)]
    return table(
        [
            ("", "count", "lines", "median", "p90", "largest"),
            ("files", *_figures(lines), f"{largest.lines} {largest.path}"),
            ("functions", *_figures(functions), str(max(functions, default=0))),
        ]
    )


def _figures(numbers):
    return map(str, [len(numbers), sum(numbers), *(percentile(numbers, share) for share in (0.5, 0.9))])


def show(package):
    print(sizes(package))
    small = relays(package)
    print(f"\nmodules with one importer and fewer than {SMALL_LINES} lines: {len(small)}")
    for path, importer in small.items():
        print(f"  {path} ({importer.removeprefix(f'{PACKAGE}.')})")
    docstrings = [(module.path, *each) for module in package for each in asking(module)]
    print(f"\ndocstrings that begin with What, Which, Who, That or Has: {len(docstrings)}")
    for path, line, text in docstrings:
        print(f"  {path}:{line}: {text}")


def show_walks(walks, *, files):
    rows = [(name, str(len(walk.files)), str(walk.hops.total())) for name, walk in walks.items()]
    print("\n" + table([("walk", "files", "hops"), *rows]))
    if files:
        for name, walk in walks.items():
            print(f"\n{name}:\n  " + "\n  ".join(walk.files))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-walks", action="store_true", help="they take two minutes")
    parser.add_argument("--files", action="store_true", help="name the files of each walk")
    arguments = parser.parse_args()
    show(modules(Path(__file__).resolve().parents[1] / PACKAGE))
    if not arguments.no_walks:
        from house_walks import walks  # noqa: PLC0415 - counting files wants no Celery

        show_walks(walks(), files=arguments.files)


if __name__ == "__main__":
    main()
