"""What becomes of a message, for every end, with attempts left and without."""

from __future__ import annotations

import itertools

import pytest

from celery_sqs_visibility.policy.fates import End, Fate, fate_of

COMES_BACK = {End.FAILED, End.RETRIED, End.UNDECIDED, End.LOST}


@pytest.mark.parametrize(("retried", "last"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("end", list(End))
def test_only_what_succeeded_or_was_meant_to_end_is_deleted(end, retried, last):
    deleted = fate_of(end, retried=retried, last=last) is Fate.DELETE
    assert deleted == (end in {End.SUCCEEDED, End.PUBLISHED, End.IGNORED, End.REVOKED})


@pytest.mark.parametrize("end", sorted(COMES_BACK, key=str))
def test_what_failed_comes_back_until_its_last_attempt(end):
    assert fate_of(end) is Fate.COME_BACK
    assert fate_of(end, last=True) is Fate.GIVE_UP


@pytest.mark.parametrize("end", [End.UNDECIDED, End.RETRIED])
def test_an_error_that_is_not_the_tasks_is_retried_whatever_the_task_says(end):
    assert fate_of(end, retried=False) is Fate.COME_BACK


@pytest.mark.parametrize("end", [End.FAILED, End.LOST])
def test_an_exception_that_the_task_does_not_retry_is_given_up_at_once(end):
    assert fate_of(end, retried=False) is Fate.GIVE_UP


@pytest.mark.parametrize("last", [True, False])
def test_released_and_rejected_messages_do_not_count_attempts(last):
    assert fate_of(End.RELEASED, last=last) is Fate.RELEASE
    assert fate_of(End.REJECTED, last=last) is Fate.GIVE_UP
