"""What a request tells of a failure, and what it believes of one that is stored."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_sqs_visibility.visibility_request import CLOCK_SKEW, _described, _is_since

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


class Trouble(Exception):
    """A user's own."""


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("exc", "described"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError("a"), "KeyError: 'a'"),
        (Trouble("in vain"), f"{__name__}.Trouble: in vain"),
        (UnpickleableExceptionWrapper("proj.errors", "Locked", ("a", 2)), "proj.errors.Locked: a, 2"),
    ],
)
def test_an_exception_is_told_by_type_and_message(exc, described):
    assert _described(exc) == described


def test_an_exception_that_cannot_say_what_it_is_is_told_all_the_same():
    assert _described(MuteError()).startswith(f"{__name__}.MuteError: ")


@pytest.mark.parametrize("form", [datetime.isoformat, lambda done: done])
def test_a_failure_older_than_the_first_receive_is_another_messages(form):
    stored = {"date_done": form(NOON)}
    assert _is_since(NOON.timestamp() - 60, stored)
    assert _is_since(NOON.timestamp() + CLOCK_SKEW, stored)
    assert not _is_since(NOON.timestamp() + CLOCK_SKEW + 1, stored)


@pytest.mark.parametrize("done", [None, NOON.replace(tzinfo=None), 7])
def test_a_failure_without_a_time_is_this_messages(done):
    assert _is_since(NOON.timestamp() + 3600, {"date_done": done})
