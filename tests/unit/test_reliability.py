"""The table of docs/reliability.md: what tests saw, and no fault that no test puts in the way."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.diary import note
from support.reliability import faults_of, report

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
