"""The table of docs/reliability.md has a row for each test of a fault, and none for a test that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.diary import note
from support.reliability import BEGIN, END, Row, Table, ids_of, merged, report

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/reliability.md"
WORKERS = [SimpleNamespace(pool="threads")]


@pytest.mark.slow("it collects all worker tests")
def test_the_table_is_of_the_tests_there_are():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--reliability", PAGE, "tests/worker"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tests = {line.removeprefix("tests/worker/") for line in listed.splitlines() if "::" in line}
    rows = ids_of((ROOT / PAGE).read_text())
    without_row = {test for test in tests if not rows & {test, test.partition("[")[0]}}
    without_test = rows - tests - {test.partition("[")[0] for test in tests}
    assert not without_row | without_test, "run `make reliability`"


@pytest.fixture
def tell(diary):
    """`report` for a test of no consequence; the row it made."""

    def make(*keys, **how):
        node = SimpleNamespace(path=Path("test_a.py"), name="test_b[c]", user_properties=[])
        report(node, diary, WORKERS, "fault", "what was done", keys, **how)
        ((_, row),) = node.user_properties
        return row

    return make


def test_what_began_more_often_than_it_failed_ran_more_than_once(tell):
    for key, events in {
        "ran": ["started", "done"],
        "failed": ["started", "failing", "started", "done"],
        "killed": ["started", "started", "done"],
    }.items():
        for event in events:
            note(event, key=key)
    row = tell("ran", "failed", "killed")
    assert (row["messages"], row["lost"], row["repeated"]) == (3, 0, 1)
    assert tell("killed", runs=2)["repeated"] == 0
    assert (row["pools"], row["tests"]) == (["threads"], ["test_a.py::test_b[c]"])


def test_what_is_neither_done_nor_in_a_queue_is_lost(tell):
    note("started", key="begun")
    assert tell("begun", "unknown", kept=2)["lost"] == 0
    with pytest.raises(AssertionError, match="1 are in a queue"):
        tell("begun", "unknown", kept=1)
    assert tell("begun", ended="started")["lost"] == 0


def row(test, seconds=None, fault="fault"):
    return Row(fault, "done", [test[-2]], 2, 0, 1, seconds, [test])


def test_rows_that_differ_in_parameters_are_one():
    (one,) = merged([row("t.py::t[a]", 1.0), row("t.py::t[b]", 2.0), row("t.py::t[c]")])
    assert str(one) == "| fault | done | a, b, c | 6 | 0 | 3 | 2.0 | `t.py::t` |"
    others = merged([row("t.py::t[a]"), row("t.py::t[b]", fault="another"), row("t.py::u[c]")])
    assert [other.test for other in others] == ["t.py::t[b]", "t.py::t[a]", "t.py::u[c]"]


def test_a_table_is_rewritten_between_its_marks(tmp_path, tell):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    table = Table(str(page))
    properties = [("reliability", tell())]
    table.pytest_runtest_logreport(SimpleNamespace(when="call", passed=True, user_properties=properties))
    table.pytest_runtest_logreport(SimpleNamespace(when="call", passed=False, user_properties=properties))
    table.pytest_sessionfinish()
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| fault |")
    assert text.endswith(f"\n{END}\nafter\n")
    assert ids_of(text) == {"test_a.py::test_b[c]"}
    assert text.count("test_b") == 1
