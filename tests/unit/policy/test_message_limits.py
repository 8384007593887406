"""Sentences about messages that are too large, SQS's and ours."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.errors import MessageTooLargeError, RequestRefusedError, UnavailableError
from celery_sqs_visibility.policy.message_limits import limit_in, payload_too_large, too_large

SENTENCE = "One or more parameters are invalid. Reason: Message must be shorter than 262144 bytes."


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (RequestRefusedError(SENTENCE), 262_144),
        (RequestRefusedError("One or more parameters are invalid."), None),
        (UnavailableError(SENTENCE), None),
        (too_large("q", 5), None),
    ],
)
def test_the_limit_of_a_queue_is_what_sqs_said_when_it_refused(error, limit):
    assert limit_in(error) == limit


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (too_large("q", 300_000, 262_144), ["'q'", "300,000", "262,144", "payload_store"]),
        (too_large("q", 2_000_000), ["2,000,000", "1,048,576", "send its key"]),
        (too_large("q", 300_000, 262_144, pointer=True), ["300,000", "262,144", "attributes are too large"]),
        (payload_too_large("q", 70_000_000), ["'q'", "70,000,000", "67,108,864", "send its key"]),
    ],
)
def test_the_error_says_the_size_the_limit_and_what_to_do(error, words):
    assert isinstance(error, MessageTooLargeError)
    assert error.code == "MessageTooLong"
    assert [word for word in words if word not in str(error)] == []
