"""What becomes of a message, for every end, with attempts left and without."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.attempts import End, Fate, fate_of

#: Of each end: the fate at first, where the task does not retry the exception, and at the last attempt.
FATES = {
    End.SUCCEEDED: (Fate.DELETE, Fate.DELETE, Fate.DELETE),
    End.PUBLISHED: (Fate.DELETE, Fate.DELETE, Fate.DELETE),
    End.IGNORED: (Fate.DELETE, Fate.DELETE, Fate.DELETE),
    End.REVOKED: (Fate.DELETE, Fate.DELETE, Fate.DELETE),
    End.RELEASED: (Fate.RELEASE, Fate.RELEASE, Fate.RELEASE),
    End.REJECTED: (Fate.GIVE_UP, Fate.GIVE_UP, Fate.GIVE_UP),
    End.FAILED: (Fate.COME_BACK, Fate.GIVE_UP, Fate.GIVE_UP),
    End.LOST: (Fate.COME_BACK, Fate.GIVE_UP, Fate.GIVE_UP),
    # The exception is not the task's.
    End.UNDECIDED: (Fate.COME_BACK, Fate.COME_BACK, Fate.GIVE_UP),
    End.RETRIED: (Fate.COME_BACK, Fate.COME_BACK, Fate.GIVE_UP),
}


@pytest.mark.parametrize("end", End)
def test_the_end_of_a_run_decides_with_the_tasks_retries_and_its_attempts(end):
    first, not_retried, last = FATES[end]
    assert fate_of(end) is first
    assert fate_of(end, retried=False) is not_retried
    assert fate_of(end, last=True) is fate_of(end, retried=False, last=True) is last
