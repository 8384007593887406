"""The table of `make servers`, and the marker by which tests name what they rely on."""

import re

import pytest
from support.behaviours.language import read_rows
from support.known_deviations import ROWS, expect_failures
from support.servers import OF_ALL, OF_EMULATORS, modules_of
from support.sqs_servers import ROOT

WORKER_TESTS = ROOT / "tests/worker"


class Item:
    """A collected test, with what is asked of it."""

    def __init__(self, *marks):
        self.marks = list(marks)

    def iter_markers(self, name):
        return [each.mark for each in self.marks if each.name == name]

    def add_marker(self, mark):
        self.marks.append(mark)


@pytest.mark.parametrize(("server", "fails"), [("ministack", True), ("moto", False), ("fake", False)])
def test_a_test_fails_where_the_row_that_it_names_has_a_deviation(server, fails):
    item = Item(pytest.mark.relies_on("fifo.attempt-brings-the-same"))
    expect_failures([item], server)
    expected = [each.kwargs for each in item.marks if each.name == "xfail"]
    assert [(each["strict"], each["reason"].split(":")[0]) for each in expected] == (
        [(True, "fifo.attempt-brings-the-same")] if fails else []
    )


def test_a_row_that_is_not_there_cannot_be_named():
    with pytest.raises(KeyError):
        expect_failures([Item(pytest.mark.relies_on("fifo.no-such-row"))], "moto")


def test_every_row_that_a_test_names_has_a_deviation():
    deviating = {row.id for row in read_rows(ROWS) if row.deviations}
    sources = "".join(path.read_text() for path in WORKER_TESTS.glob("test_*.py"))
    marks = re.findall(r"relies_on\(([^)]*)\)", sources)
    named = {name for mark in marks for name in re.findall(r'"([^"]+)"', mark)}
    assert named
    assert named <= deviating


def test_what_is_run_is_there():
    assert modules_of("fake") == OF_ALL.split()
    for module in f"{OF_ALL} {OF_EMULATORS}".split():
        assert (WORKER_TESTS / f"test_{module}.py").exists()
