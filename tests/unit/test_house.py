"""Counts of `make house`: sizes, modules and docstrings to look at, and hops between files."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import Counter

import pytest


@pytest.fixture
def house(benchmark_module):
    return benchmark_module("house")


@pytest.fixture
def package(house, tmp_path):
    """Modules of a package with that text."""

    def make(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.py" if name != "face" else tmp_path / "__init__.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return house.modules(tmp_path)

    return make


def test_a_percentile_is_one_of_the_numbers(house):
    assert [house.percentile(range(1, 11), share) for share in (0, 0.5, 0.9, 1)] == [1, 5, 9, 10]
    assert house.percentile([], 0.9) == 0


def test_a_function_is_counted_from_its_def_without_its_docstring(house):
    text = '''
    @decorated
    def outer():
        """One.

        Two.
        """
        def inner():
            pass
        return inner
    '''
    assert sorted(house.function_lines(ast.parse(textwrap.dedent(text)))) == [2, 4]


def test_a_module_is_imported_by_its_name_or_as_one_of_its_packages_names(house, package):
    made = package(
        face="from celery_sqs_visibility.low import thing",
        low="thing = 1",
        high="def f():\n    import celery_sqs_visibility.low\n    from celery_sqs_visibility import middle",
        middle="import celery_sqs_visibility.nothing",
    )
    root = "celery_sqs_visibility"
    low, middle, high = (f"{root}.{name}" for name in ("low", "middle", "high"))
    assert house.importers(made) == {low: {root, high}, middle: {high}}
    assert house.relays(made) == {"middle.py": high}


def test_docstrings_are_listed_that_begin_with_a_word_for_a_thing(house, package):
    (module,) = package(
        low='''\
        """Whatever this is."""
        class Lock:
            """Which one it is.

            And more.
            """
            def has(self):
                """Has it."""
        '''
    )
    assert list(house.asking(module)) == [(3, "Which one it is."), (8, "Has it.")]


def test_tables_have_columns(house):
    assert house.table([("walk", "files"), ("success", "5")]) == "walk     files\nsuccess      5"
    assert house.sizes([house.Module("a.py", "a", "def f():\n    pass\n")]).splitlines() == [
        "           count  lines  median  p90  largest",
        "files          1      2       2    2   2 a.py",
        "functions      1      2       2    2        2",
    ]


def test_a_walk_is_what_all_repetitions_have_and_an_idle_worker_has_not(
    benchmark_module,
):
    walks = benchmark_module("house_walks")

    def walk(calls, hops):
        return walks.walk_of(
            [
                ["MainThread", "call", "a.py", "f", calls],
                ["sqs-pump", "call", "a.py", "f", 1],
                ["sqs-pump", "hop", "a.py", "b.py", hops],
                ["sqs-http", "hop", "a.py", "c.py", 7],
            ]
        )

    once = walks.least([walk(3, 2), walk(2, 5)]) - walks.Walk(Counter({("a.py", "f"): 1}), Counter())
    assert once == walks.Walk(Counter({("a.py", "f"): 2}), Counter({("a.py", "b.py"): 2}))
    assert once.files == ["a.py"]


def test_a_hop_crosses_files_of_the_package_over_those_of_others(benchmark_module):
    tracing = benchmark_module("house_tracer")
    tracer = tracing.Tracer()

    def code(file, text, **names):
        exec(compile(text, file, "exec"), names)
        return names["f"]

    low = code(f"{tracing.PACKAGE}low.py", "def f(): pass")
    library = code("library.py", "def f(): low()", low=low)
    high = code(f"{tracing.PACKAGE}high.py", "def f(): library(), g()\ndef g(): pass", library=library)
    before = sys.getprofile()
    sys.setprofile(tracer.profile)
    try:
        high()
        code(f"{tracing.PACKAGE}new.py", "low()\nclass C: low()\ndef f(): pass", low=low)
        code(f"{tracing.PACKAGE}{tracing.LOOKS}", "def f(): high()", high=high)()
    finally:
        sys.setprofile(before)
    assert [row[1:] for row in tracer.rows()] == [
        ["call", "high.py", "f", 1],
        ["call", "low.py", "f", 1],
        ["hop", "high.py", "low.py", 1],
        ["hop", "low.py", "high.py", 1],
        ["call", "high.py", "g", 1],
    ]
