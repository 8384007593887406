"""The pages of the reference are what the code says."""

import pytest
from support.reference import DOCS, TABLE, pages


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.name)
def test_a_page_of_the_reference_is_made_of_the_code(page):
    assert page.read_text() == pages()[page], f"{page.name} is out of date: make reference"


def test_the_table_of_the_metrics_is_between_the_marks():
    assert TABLE.search((DOCS / "metrics.md").read_text())
