"""Tests that need a behaviour of SQS which the server does not have: they are expected to fail there.

`@pytest.mark.relies_on("fifo.attempt-brings-the-same")` names a row of tests/conformance/behaviours.jsonl.
On a server that deviates from it by that row, the test must fail, or is not run where `run=False`. The row is
the only place that names implementations: a test that passes all the same has named a behaviour which it
does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.behaviours.language import read_rows
from support.sqs_servers import ROOT, implementation

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKER = "relies_on"
ROWS = ROOT / "tests/conformance/behaviours.jsonl"


def expect_failures(items: Iterable[pytest.Item], server: str) -> None:
    """Mark the tests that a deviation of that server fails. A row that is not there is an error."""
    marked = [(item, mark) for item in items for mark in item.iter_markers(MARKER)]
    if not marked:
        return
    rows = {row.id: row for row in read_rows(ROWS)}
    for item, mark in marked:
        for row in [rows[name] for name in mark.args]:
            if implementation(server) in row.deviations:
                run = mark.kwargs.get("run", True)
                item.add_marker(pytest.mark.xfail(reason=f"{row.id}: {row.claim}", strict=True, run=run))
