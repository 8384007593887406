"""Whether a message comes back, for every end that is decided here, with attempts left and without."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.retries import End, comes_back_after

#: Of each end: whether it comes back where the task does not retry the exception.
NOT_RETRIED = {
    End.FAILED: False,
    End.LOST: False,
    End.UNDECIDED: True,  # the exception is not the task's
    End.RETRIED: True,
}


@pytest.mark.parametrize("end", End)
def test_the_end_of_a_run_decides_with_the_tasks_retries_and_its_attempts(end):
    assert comes_back_after(end)
    assert comes_back_after(end, retried=False) is NOT_RETRIED[end]
    assert not comes_back_after(end, last=True)
    assert not comes_back_after(end, retried=False, last=True)
