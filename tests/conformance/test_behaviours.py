"""The rows of behaviours.jsonl, replayed on every implementation of SQS that is here."""

import pytest
from support.behaviours import page, recorder
from support.behaviours.__main__ import PAGE
from support.behaviours.language import read_rows
from support.behaviours.replay import replay_all, replay_all_on_fakes
from support.behaviours.servers import server
from support.behaviours.targets import BotoTarget
from support.known_deviations import ROWS
from support.sqs_servers import INSTALLED_BY, ROOT, is_installed

BEHAVIOURS = read_rows(ROWS)
QUICK = [row for row in BEHAVIOURS if not row.is_slow]


def test_the_fake_answers_as_amazon_but_where_the_rows_say_otherwise():
    assert recorder.disagreements("fake", BEHAVIOURS, replay_all_on_fakes(BEHAVIOURS)) == []


def test_so_does_moto(emulator):
    target = BotoTarget(emulator.url)
    came = replay_all(QUICK, target)
    target.close()
    assert recorder.disagreements("moto", QUICK, came) == []


def test_the_fake_that_is_served_is_the_fake(tmp_path):
    asked = [row for row in QUICK if row.expected_of("fake").get("asked", True)]
    with server("fake", tmp_path) as target:
        came = replay_all(asked, target)
    assert recorder.disagreements("fake", asked, came) == []


@pytest.mark.slow("each starts in seconds of CPU")
@pytest.mark.parametrize("name", ["ministack", "localstack"])
def test_so_do_others_that_are_installed(name, credentials, tmp_path):
    if not is_installed(name):
        pytest.skip(f"{name} is not installed: {INSTALLED_BY}")
    with server(name, tmp_path) as target:
        came = replay_all(QUICK, target)
    assert recorder.disagreements(name, QUICK, came) == []


def test_the_page_is_of_these_rows():
    assert page.is_current(PAGE.read_text(), BEHAVIOURS), "run `make behaviours`"


@pytest.mark.parametrize("row", [row for row in BEHAVIOURS if row.survives], ids=lambda row: row.id)
def test_there_is_the_test_that_a_row_names(row):
    path, _, function = row.survives.partition("::")
    assert not function or f"def {function}(" in (ROOT / "tests" / path).read_text()
    assert (ROOT / "tests" / path).exists()
