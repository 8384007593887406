"""The message of a stock task that kombu's `backoff_policy` names comes back after its delay."""

from __future__ import annotations

import pytest
from celery.exceptions import Reject
from support.factories import AFTER_AN_ERROR, FakeHolder, exc_info, held_delivery, request

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.core.settlements import RELEASE, Hide, Lapse

POLICY = {"url": "https://sqs/1/q", "backoff_policy": {1: 10, 2: 20.5}, "backoff_tasks": ["named"]}
GIVEN_UP = ("rejected by the task", {})


def noop():
    """A task."""


FAILURE, REJECTED, REQUEUED = ValueError(), Reject("no"), Reject("no", requeue=True)


@pytest.mark.parametrize(
    ("name", "exc", "receive_count", "settled"),
    [
        ("named", FAILURE, 1, Hide(10)),
        ("named", FAILURE, 2, Hide(21)),
        ("named", FAILURE, 3, Lapse()),
        ("named", REJECTED, 1, Hide(10)),
        ("named", REJECTED, 3, Lapse()),
        ("named", REQUEUED, 1, RELEASE),
        ("other", FAILURE, 1, AFTER_AN_ERROR),
        ("other", REJECTED, 1, GIVEN_UP),
    ],
)
def test_a_rejected_message_comes_back_as_the_policy_of_its_queue_says(
    app, name, exc, receive_count, settled
):
    holder = FakeHolder(predefined_queues={"q": POLICY})
    options = {"acks_late": True, "acks_on_failure_or_timeout": False}
    task = app.task(noop, name=name, shared=False, **options)
    one = request(task, held_delivery(holder, receive_count=receive_count))
    one.on_failure(exc_info(exc))
    assert holder.settled == [settled]


def test_a_visibility_task_that_rejects_its_message_gives_it_up(app):
    holder = FakeHolder(predefined_queues={"q": POLICY})
    task = app.task(noop, name="named", shared=False, base=VisibilityTask)
    request(task, held_delivery(holder)).on_failure(exc_info(REJECTED))
    assert holder.settled == [GIVEN_UP]
