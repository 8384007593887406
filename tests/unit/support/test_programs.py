"""A test whose program is missing is skipped with a sentence, or fails where all are required."""

from __future__ import annotations

import shutil

import pytest
from support import programs

SENTENCE = "^chromedriver is missing: apt-get install chromium-driver$"


@pytest.fixture
def without(monkeypatch):
    """A machine that has none of them; nothing is required."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(programs, "_required", False)


@pytest.mark.usefixtures("without")
def test_a_missing_program_skips_the_test():
    with pytest.raises(pytest.skip.Exception, match=SENTENCE):
        programs.program("chromedriver")


@pytest.mark.usefixtures("without")
def test_a_missing_program_fails_the_test_where_all_are_required():
    programs.require_all()
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        programs.program("chromedriver")


def test_a_program_is_found_by_its_name():
    assert programs.program("sh") == shutil.which("sh")
