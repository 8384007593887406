"""What a request believes of a stored result, and how it describes an exception."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import states
from celery.exceptions import NotRegistered
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_sqs_visibility.worker.visibility_request import StoredResult, described

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Trouble(Exception):
    """A user's own."""


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError("a"), "KeyError: 'a'"),
        (Trouble("in vain"), f"{__name__}.Trouble: in vain"),
        (UnpickleableExceptionWrapper("proj.errors", "Locked", ("a", 2)), "proj.errors.Locked: a, 2"),
    ],
)
def test_an_exception_is_described_by_type_and_message(exc, text):
    assert described(exc) == text


def test_an_exception_that_cannot_say_what_it_is_is_described_all_the_same():
    assert described(MuteError()).startswith(f"{__name__}.MuteError: ")


@pytest.mark.parametrize(
    ("meta", "at"),
    [
        *[
            ({"date_done": done}, NOON.timestamp())
            for done in (
                NOON,
                NOON.isoformat(),
                NOON.isoformat().replace("+00:00", "Z"),
                NOON.replace(tzinfo=None),  # SQL and MongoDB
                NOON.replace(tzinfo=None).isoformat(),
                NOON.astimezone(timezone(timedelta(hours=5))).isoformat(),
            )
        ],
        *[(meta, None) for meta in ({}, {"date_done": None}, {"date_done": 7}, {"date_done": "yesterday"})],
    ],
)
def test_the_time_of_an_outcome_without_a_zone_is_utc_and_one_that_cannot_be_read_is_not_known(meta, at):
    assert StoredResult(meta).done_at == at


@pytest.mark.parametrize(("error", "failed"), [(Trouble("in vain"), True), (NotRegistered("t"), False)])
def test_a_task_that_another_worker_did_not_know_has_not_failed(error, failed):
    facts = SimpleNamespace(first_received=NOON.timestamp() - 1)
    delivery = SimpleNamespace(facts=facts, moved_from=None)
    meta = {"status": states.FAILURE, "result": error, "date_done": NOON}
    assert StoredResult(meta).is_failure_of(delivery) is failed


@pytest.mark.parametrize("uri", ["rpc://", "redis://"])
def test_a_backend_that_cannot_tell_or_does_not_answer_tells_nothing(uri):
    def get_task_meta(*_, **__):
        assert uri != "rpc://", "asking would make a queue"
        raise ConnectionError

    backend = SimpleNamespace(as_uri=lambda: uri, get_task_meta=get_task_meta)
    assert StoredResult.read(SimpleNamespace(backend=backend), "id").status is None
