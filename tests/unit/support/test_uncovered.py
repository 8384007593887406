"""The list of code that no test runs, and what its reasons are about."""

from support import uncovered


def test_functions_that_have_a_reason_exist():
    for name, functions in uncovered.reasons().items():
        path = uncovered.PACKAGE / name
        assert path.exists(), name
        assert functions.keys() <= uncovered.functions(path), name


def test_the_page_has_a_place_for_it():
    assert uncovered.WRITTEN.search(uncovered.PAGE.read_text())
