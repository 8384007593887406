"""The table of docs/reliability.md: what tests saw, and no fault that no test puts in the way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.diary import note
from support.reliability import BEGIN, END, Row, Table, faults_of, report, shown

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"


def test_every_fault_of_the_page_is_in_a_test():
    source = "".join(path.read_text() for path in (ROOT / "tests/worker").glob("*.py"))
    faults = faults_of(PAGE.read_text())
    assert len(faults) > 80
    # Some names are put together, as "deletes: 500" is.
    parts = {fault: [fault, fault.partition(": ")[2], fault.partition(" ")[2]] for fault in faults}
    assert [fault for fault, each in parts.items() if not any(part and part in source for part in each)] == []


@pytest.fixture
def tell(diary):
    """`report` for a test of no consequence; the row it made."""

    def make(*keys, **how):
        node = SimpleNamespace(path=Path("test_a.py"), name="test_b[c]", user_properties=[])
        report(node, diary, "fault", "what was done", keys, **how)
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
    assert row["repeated"] == 1
    assert tell("killed", runs=2)["repeated"] == 0


def test_what_is_neither_done_nor_in_a_queue_is_lost(tell):
    note("started", key="begun")
    tell("begun", "unknown", kept=2)
    with pytest.raises(AssertionError, match="1 are in a queue"):
        tell("begun", "unknown", kept=1)
    tell("begun", ended="started")


def test_rows_that_differ_in_parameters_are_one_and_faults_without_much_harm_are_only_named():
    text = shown(
        [
            Row("a", "done", 1, 1.0),
            Row("a", "done", 1, 2.0),
            Row("a", "else", 0, None),
            Row("b", "done", 0, None),
            Row("c", "done", 0, 2.1),
            Row("c", "else", 0, 0.1),
            Row("d", "done", 0, 2.0),
            Row("d", "else", 0, 0.3),
        ]
    )
    assert text.splitlines()[2:] == [
        "| a | done | 2 | 2.0 |",
        "| c | done | 0 | 2.1 |",
        "",
        "Nothing ran more than once, and work went on within 2 s, after: d (2.0 s).",
        "",
        "Nothing ran more than once, and nothing stopped, after: b.",
    ]


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
    assert faults_of(text) == {"fault"}
    assert text.count(": fault.") == 1
