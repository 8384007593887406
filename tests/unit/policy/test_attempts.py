"""How often a message was tried, and whether it may be tried again."""

from __future__ import annotations

import pytest
from celery import Task
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.retries import (
    UNKNOWN_TASK_SECONDS,
    UNREADABLE_RECEIVES,
    attempts_allowed,
    attempts_made,
    is_last_attempt,
    is_permanently_unreadable,
)

COUNTS = st.integers(0, 1000)


@pytest.mark.parametrize(
    ("receive_count", "parks", "published_retries", "attempts"),
    [(1, 0, 0, 0), (4, 0, 0, 3), (4, 2, 0, 1), (2, 0, 5, 6)],
    ids=["first", "every receive", "no parks", "celery's retries too"],
)
def test_receives_and_published_retries_count_as_attempts(receive_count, parks, published_retries, attempts):
    assert attempts_made(receive_count, parks, published_retries) == attempts


@given(st.integers(1, 1000), COUNTS, COUNTS)
def test_more_parks_than_receives_make_no_negative_attempts(receive_count, parks, published):
    assert attempts_made(receive_count, parks, published) >= published


@given(COUNTS, st.integers(1, 1000))
def test_no_limit_never_ends(retries, receive_count):
    assert not is_last_attempt(retries, None, receive_count, None)


@pytest.mark.parametrize(
    ("retries", "max_retries", "receive_count", "max_receive_count", "allowed"),
    [(0, None, 1, None, None), (1, 5, 2, None, 6), (1, None, 2, 4, 4), (1, 5, 2, 4, 4), (0, 5, 3, 4, 2)],
    ids=["no limit", "the task's", "the queue's", "the lower one", "parks use receives up"],
)
def test_the_lower_limit_says_how_many_attempts_there_are(
    retries, max_retries, receive_count, max_receive_count, allowed
):
    assert attempts_allowed(retries, max_retries, receive_count, max_receive_count) == allowed


@pytest.mark.parametrize(
    ("max_retries", "retries", "last"),
    [(3, 0, False), (3, 2, False), (3, 3, True), (3, 4, True), (0, 0, True)],
)
def test_max_retries_allow_one_attempt_more(max_retries, retries, last):
    assert is_last_attempt(retries, max_retries, retries + 1, None) is last


@pytest.mark.parametrize(("receive_count", "last"), [(1, False), (3, False), (4, True), (5, True)])
def test_the_last_receive_that_the_queue_allows_is_the_last_attempt(receive_count, last):
    assert is_last_attempt(receive_count - 1, None, receive_count, 4) is last


@given(COUNTS, COUNTS, st.integers(1, 1000), st.integers(1, 1000))
def test_the_smaller_limit_decides(retries, max_retries, receive_count, max_receive_count):
    assert is_last_attempt(retries, max_retries, receive_count, max_receive_count) == (
        is_last_attempt(retries, max_retries, receive_count, None)
        or is_last_attempt(retries, None, receive_count, max_receive_count)
    )


@pytest.mark.parametrize(
    ("receives", "seconds", "others_may", "given_up"),
    [
        (UNREADABLE_RECEIVES - 1, 1e6, False, False),
        (UNREADABLE_RECEIVES, 0, False, True),
        (UNREADABLE_RECEIVES, UNKNOWN_TASK_SECONDS - 1, True, False),
        (UNREADABLE_RECEIVES - 1, UNKNOWN_TASK_SECONDS, True, False),
        (UNREADABLE_RECEIVES, UNKNOWN_TASK_SECONDS, True, True),
    ],
)
def test_a_message_that_is_no_task_closes_its_group_for_a_while(receives, seconds, others_may, given_up):
    assert is_permanently_unreadable(receives, seconds, others_may=others_may) is given_up
    assert Task.max_retries + 1 == UNREADABLE_RECEIVES, "as a task that says nothing"
