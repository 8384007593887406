"""Users meet one family of errors, all from the face, and all survive the way through a result backend."""

import pickle

import pytest
from celery import Celery
from kombu.exceptions import KombuError, OperationalError

import celery_sqs_visibility
from celery_sqs_visibility import errors
from celery_sqs_visibility.errors import (
    ETATooFarError,
    OptionError,
    PublishError,
    RefusedError,
    SQSError,
    SQSVisibilityError,
    TooLargeError,
    UnavailableError,
    UnroutableError,
)

ERRORS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SQSVisibilityError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_the_one_root_and_is_imported_from_the_face(kind):
    assert issubclass(kind, SQSVisibilityError)
    assert kind.__name__.endswith("Error")
    assert getattr(celery_sqs_visibility, kind.__name__) is kind


def test_every_name_of_the_face_has_a_home_and_no_other_is_an_attribute():
    homeless = [
        name for name in celery_sqs_visibility.__all__ if getattr(celery_sqs_visibility, name) is None
    ]
    assert homeless == []
    with pytest.raises(AttributeError, match="has no attribute 'Novelty'"):
        _ = celery_sqs_visibility.Novelty


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        (OptionError, ValueError),
        (ETATooFarError, ValueError),
        (TooLargeError, ValueError),
        (UnroutableError, KombuError),
        (RefusedError, OperationalError),
    ],
)
def test_where_python_or_kombu_has_an_error_for_it_ours_is_one_too(kind, known):
    assert issubclass(kind, known)


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind is not PublishError])
def test_every_error_can_be_pickled(kind):
    facts = {"code": "c", "action": "a"} if issubclass(kind, SQSError) else {}
    error = pickle.loads(pickle.dumps(kind("slow down", **facts)))
    assert (type(error), str(error), vars(error)) == (kind, "slow down", facts)


def test_a_publish_error_lists_ids_and_reasons_and_can_be_pickled():
    failures = [(f"id-{number}", UnavailableError("down", code="X")) for number in range(5)]
    error = pickle.loads(pickle.dumps(PublishError(failures, 9)))
    assert str(error) == (
        "5 of 9 messages could not be sent: id-0: down; id-1: down; id-2: down; and 2 more, see `failures`"
    )
    assert [task_id for task_id, _ in error.failures] == [task_id for task_id, _ in failures]
    assert {(failure.reason, type(failure.error)) for failure in error.failures} == {
        ("down", UnavailableError)
    }
    assert error.published == 9


def test_a_publish_error_keeps_its_class_and_text_in_a_backend_that_writes_json():
    error = PublishError([("id-1", UnavailableError("down"))], 9)
    with Celery("test", set_as_current=False, backend="cache+memory://") as app:
        stored = app.backend.prepare_exception(error, serializer="json")
        read = app.backend.exception_to_python(stored)
    assert type(read) is PublishError
    assert "id-1" in str(read)
    assert "down" in str(read)
