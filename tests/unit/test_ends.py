"""The page on how runs end has the table that workers are held to."""

import pytest
from support.ends import CELERY, PAGE, ROWS, document


def test_the_names_of_the_rows_are_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.skipif(CELERY < (5, 7), reason="the page tells of the newest Celery")
def test_the_page_is_up_to_date():
    remedy = "write its tables anew: cd tests && ../.venv/bin/python -m support.ends"
    assert PAGE.read_text() == document(), remedy
