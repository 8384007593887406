"""The example project's tests of its importer."""

from __future__ import annotations

import pytest
from celery import _state
from proj.tests.test_importer import naive_import, test_an_object_is_imported_once_whatever_happens

from celery_sqs_visibility.testing import SimulationFailedError

# Importing proj made its app the current one of this process, in which other tests have theirs.
_state._set_current_app(None)

__all__ = ["test_an_object_is_imported_once_whatever_happens"]


def test_a_naive_importer_is_found_out_by_one_of_the_first_ten_schedules():
    with pytest.raises(SimulationFailedError) as raised:
        naive_import()
    assert raised.value.seed < 10
    assert "took place" in str(raised.value) or "effect (1, 'a', 100)" in str(raised.value)
