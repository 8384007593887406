"""A request whose error passes is made again, as often as there are pauses."""

from unittest.mock import Mock

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws import attempts
from celery_sqs_visibility.aws.attempts import attempt, pauses_until
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError

SLOW_DOWN = ThrottledError("slow down")


def test_a_request_is_made_once_more_than_there_are_pauses():
    waits = []
    request = Mock(side_effect=SLOW_DOWN)
    with pytest.raises(ThrottledError):
        attempt(request, ThrottledError, [1.0, 2.0], waits.append)
    assert request.call_count == 3
    assert waits == [1.0, 2.0]


def test_another_error_is_raised_at_once():
    request = Mock(side_effect=AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        attempt(request, ThrottledError, [1.0])
    assert request.call_count == 1


def test_a_wait_that_is_cut_short_ends_the_attempts():
    request = Mock(side_effect=SLOW_DOWN)
    with pytest.raises(ThrottledError):
        attempt(request, ThrottledError, [1.0, 2.0], lambda _: True)
    assert request.call_count == 1


def test_pauses_end_with_the_deadline(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(attempts, "pause", lambda failures: failures * 4.0)
    pauses = []
    for seconds in pauses_until(clock.monotonic() + 10.0, clock):
        pauses.append(seconds)
        clock.advance(seconds)
    assert pauses == [4.0, 6.0]
