"""What a request tells of a failure, and what it believes of one that is stored."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_sqs_visibility.worker.visibility_request import VisibilityRequest, _described, _done_at

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


@pytest.mark.parametrize(
    "done",
    [
        NOON,
        NOON.isoformat(),
        NOON.isoformat().replace("+00:00", "Z"),
        NOON.replace(tzinfo=None),  # SQL and MongoDB
        NOON.replace(tzinfo=None).isoformat(),
        NOON.astimezone(timezone(timedelta(hours=5))).isoformat(),
    ],
)
def test_the_time_of_an_outcome_without_a_zone_is_utc(done):
    assert _done_at({"date_done": done}) == NOON.timestamp()


@pytest.mark.parametrize("done", [None, 7, "yesterday"])
def test_a_time_that_cannot_be_read_is_not_known(done):
    assert _done_at({"date_done": done}) is None
    assert _done_at({}) is None


def delivery(first_received):
    return SimpleNamespace(facts=SimpleNamespace(first_received=first_received))


def test_a_failure_older_than_the_first_receive_is_another_messages():
    stored = {"status": "FAILURE", "date_done": NOON.replace(tzinfo=None)}
    is_failure_of = VisibilityRequest._is_failure_of
    assert is_failure_of(delivery(NOON.timestamp() - 60), stored)
    assert not is_failure_of(delivery(NOON.timestamp() + 1), stored)


def test_a_time_that_is_not_known_decides_nothing():
    is_failure_of = VisibilityRequest._is_failure_of
    assert not is_failure_of(delivery(NOON.timestamp()), {"status": "FAILURE", "date_done": None})
    assert not is_failure_of(delivery(0), {"status": "FAILURE", "date_done": NOON})
