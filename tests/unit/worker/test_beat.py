"""beat ends at its start where SQS cannot be used, and only there."""

from __future__ import annotations

import logging
import uuid

import pytest
from botocore.exceptions import ClientError
from celery import Celery

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    RequestRefusedError,
    TLSError,
    UnavailableError,
)
from celery_sqs_visibility.policy.predefined import PredefinedQueue
from celery_sqs_visibility.worker.startup import check_beat

URL = "https://sqs.eu-west-1.amazonaws.com/1/q"


@pytest.fixture
def sqs():
    return FakeSQS()


@pytest.fixture
def beat_app(sqs):
    with Celery("beat", set_as_current=False, broker=f"celery-sqs-visibility://{uuid.uuid4()}:s@") as app:
        app.conf.task_default_queue = "q"
        yield app


def use(app, queues):
    with app.connection_for_write() as connection:
        connection.transport.context.queues = queues


@pytest.mark.parametrize("error", [CredentialsRefusedError, RequestRefusedError, TLSError])
def test_wrong_settings_end_it_with_one_sentence_and_status_1(beat_app, sqs, caplog, error):
    use(beat_app, Queues(sqs))
    sqs.fail_next("GetQueueUrl", error("no."))
    with pytest.raises(SystemExit) as end:
        check_beat(beat_app)
    assert end.value.code == 1
    assert caplog.messages == ["beat cannot start: no."]
    assert caplog.records[0].levelno == logging.CRITICAL


def test_a_wrong_option_ends_it_too(beat_app, caplog):
    beat_app.conf.broker_transport_options = {"regin": 1}
    with pytest.raises(SystemExit):
        check_beat(beat_app)
    assert caplog.messages[0].startswith("beat cannot start: unknown transport option 'regin'")


def answered(code):
    """A refusal by SQS itself."""
    error = RequestRefusedError("no", code=code)
    error.__cause__ = ClientError({"Error": {"Code": code}}, "GetQueueUrl")
    return error


@pytest.mark.parametrize(
    "error",
    [None, AccessDeniedError("no"), UnavailableError("later"), answered("InvalidParameterValue")],
    ids=repr,
)
def test_a_queue_that_is_not_found_does_not(beat_app, sqs, caplog, error):
    use(beat_app, Queues(sqs))
    if error is not None:
        sqs.fail_next("GetQueueUrl", error)
    check_beat(beat_app)
    assert not caplog.messages
    assert [action for action, _ in sqs.calls] == ["GetQueueUrl"]


def test_of_a_predefined_queue_it_asks_for_its_attributes(beat_app, sqs):
    beat_app.conf.broker_transport_options = {"predefined_queues": {"q": {"url": URL}}}
    use(beat_app, Queues(sqs, predefined={"q": PredefinedQueue(URL)}))
    check_beat(beat_app)
    assert [action for action, _ in sqs.calls] == ["GetQueueAttributes"]


def test_another_broker_is_none_of_its_business(app):
    check_beat(app)
