"""The page on how runs end is written from the table that workers are held to."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ends import CELERY, ROWS, document

ROOT = Path(__file__).resolve().parents[2]


def test_the_names_of_the_rows_are_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.skipif(CELERY < (5, 7), reason="the page tells of the newest Celery")
def test_the_page_is_up_to_date():
    remedy = "write it anew: cd tests && ../.venv/bin/python -m support.ends > ../docs/ends.md"
    assert (ROOT / "docs/ends.md").read_text() == document(), remedy
