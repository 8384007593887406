"""A worker learns from its tasks and options which messages of others it takes."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from support.aws_events import eventbridge, s3_notification
from support.factories import sqs_queue

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.policy.option_parsers import CALLABLE
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.worker.bound_tasks import take_events


def run(event):
    pass


def adapt(body, attributes):
    return "adapted", [body], {}


NOT_CALLABLE = 5


@pytest.fixture
def take():
    """Make the decoder of a worker with these tasks and options; `None` if it needs none."""
    apps = []

    def take(tasks, **options):
        app = Celery("events", set_as_current=False, task_cls=VisibilityTask)
        apps.append(app)
        made = [app.task(name=name, shared=False, lazy=False, **each)(run) for name, each in tasks.items()]
        # Alone: an app has the shared tasks of all modules that this process has imported, too.
        alone = SimpleNamespace(tasks={task.name: task for task in made})
        context = SimpleNamespace(
            options=Options.parse(options),
            attribute_names=("All",),
            decode_message=decode_message,
            decode_for_worker=None,
        )
        take_events(alone, context)
        return context.decode_for_worker

    yield take
    for app in apps:
        app.close()


def task_of(decode, body):
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": json.dumps(body), "Attributes": {}}
    return decode(sqs_queue(), message).task


def test_a_worker_whose_tasks_take_no_events_decodes_as_ever(take):
    assert take({"plain": {}}) is None


def test_tasks_and_adapter_take_messages(take):
    decode = take({"imports": {"sqs_event": ["s3:*", "sns:t"]}}, message_adapter=f"{__name__}:adapt")
    assert task_of(decode, s3_notification()) == "imports"
    assert task_of(decode, eventbridge()) == "adapted"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"message_adapter": f"{__name__}:missing"},
            f"expected message_adapter to be {re.escape(CALLABLE)}, got .* which cannot be imported: module",
        ),
        ({"message_adapter": f"{__name__}:NOT_CALLABLE"}, "NOT_CALLABLE', which is 5"),
    ],
)
def test_an_adapter_that_is_none_is_refused(take, options, sentence):
    with pytest.raises(ImproperlyConfigured, match=sentence):
        take({}, **options)


def test_two_tasks_for_one_event_are_refused(take):
    with pytest.raises(ImproperlyConfigured, match="the tasks 'one' and 'two' both have sqs_event='s3:\\*'"):
        take({"one": {"sqs_event": "s3:*"}, "two": {"sqs_event": "s3:*"}})


@pytest.mark.parametrize("setting", [{"sqs_event": "ObjectCreated"}, {"sqs_event_per": "batch"}])
def test_a_wrong_setting_is_refused_with_its_task(take, setting):
    (name,) = setting
    with pytest.raises(ImproperlyConfigured, match=f"task 'wrong': expected {name} to be"):
        take({"wrong": setting})
