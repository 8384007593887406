"""A receive without an answer is tried again under its id, as long as that means the same messages."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.delivery.receive.receive_attempts import ATTEMPT_SECONDS, Attempts

NOW = 1000.0


def test_each_receive_has_an_id_of_its_own():
    attempts = Attempts(120)
    assert len({attempts.begin(NOW).id for _ in range(3)}) == 3


def test_those_without_an_answer_are_tried_again_each_once_the_oldest_first():
    attempts = Attempts(120)
    first, second = attempts.begin(NOW), attempts.begin(NOW)
    attempts.unanswered(first)
    attempts.unanswered(second)
    again = [attempts.begin(NOW + 1) for _ in range(3)]
    assert again[:2] == [first, second]
    assert again[2] not in {first, second}


@pytest.mark.parametrize(
    ("visibility_timeout", "lasts"), [(30, 30), (1200, ATTEMPT_SECONDS), (None, ATTEMPT_SECONDS)]
)
def test_an_id_counts_from_its_first_request(visibility_timeout, lasts):
    attempts = Attempts(visibility_timeout)
    attempt = attempts.begin(NOW)
    attempts.unanswered(attempt)
    assert attempts.begin(NOW + lasts - 1) == attempt
    attempts.unanswered(attempt)
    assert attempts.begin(NOW + lasts) != attempt
