"""The table of `make servers`, and the marker by which tests name what they rely on."""

from __future__ import annotations

import re

import pytest
from support.behaviours.language import read_rows
from support.known_deviations import ROWS, expect_failures
from support.servers import OF_ALL, OF_EMULATORS, Line, modules_of, read, table
from support.sqs_servers import FAKES, ROOT, SERVERS, sqs_server

from celery_sqs_visibility.testing import FakeSQS

WORKER_TESTS = ROOT / "tests/worker"

REPORT = """<testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"><failure message="no">E</failure></testcase>
<testcase name="c"><error message="no">E</error></testcase>
<testcase name="d"><skipped type="pytest.xfail" message="fifo.late-change: A late one."/></testcase>
<testcase name="e"><skipped type="pytest.xfail" message="[NOTRUN] dead.has-the-same-id: One."/></testcase>
<testcase name="f"><skipped type="pytest.skip" message="jq is missing"/></testcase>
</testsuite></testsuites>"""


class Item:
    """A collected test, with what is asked of it."""

    def __init__(self, *marks):
        self.marks = list(marks)

    def iter_markers(self, name):
        return [each.mark for each in self.marks if each.name == name]

    def add_marker(self, mark):
        self.marks.append(mark)


def test_a_line_has_what_passed_failed_and_deviates(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    line = read("moto", report, 2.6)
    assert line == Line("moto", 2.6, 1, 2, ("dead.has-the-same-id", "fifo.late-change"))
    assert not line.is_good
    assert table([line]).splitlines()[1].split() == [
        *("moto", "1", "2", "3", "dead.has-the-same-id,", "fifo.late-change")
    ]


def test_a_run_without_a_report_is_no_good_one(tmp_path):
    assert not read("moto", tmp_path / "none.xml", 1).is_good


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


def test_the_fakes_have_its_switches():
    assert (
        {name for switches in FAKES.values() for name in switches}
        == {*("late_change", "late_fifo_change", "old_handle_deletes", "names_rest")}
        <= FakeSQS.__init__.__kwdefaults__.keys()
    )


def test_a_server_has_a_name(tmp_path):
    with pytest.raises(ValueError, match="expected one of moto, ministack"), sqs_server("goaws", tmp_path):
        pass
    assert len(SERVERS) == 10
