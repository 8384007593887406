"""A worker writes a line of each queue, from what it knows already."""

from __future__ import annotations

import json
import logging

import pytest
from support.exclusive_stores import Refusing

from celery_sqs_visibility.aws.fake import ACCOUNT, ENDPOINT, REGION, FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    StoreError,
    StoreUnavailableError,
    UnavailableError,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.worker import startup

OPTIONS = Options.parse({"visibility_timeout": 90})
PLACE = f"at {ENDPOINT}/{ACCOUNT}/app-a-b (region {REGION}, account {ACCOUNT}): "
DENIED = AccessDeniedError("not authorized")


@pytest.fixture
def sqs():
    return FakeSQS()


@pytest.fixture
def queues(sqs):
    return Queues(sqs, prefix="app-")


@pytest.fixture
def report(sqs, caplog):
    """Report a queue whose policy was asked for; the record."""
    caplog.set_level(logging.INFO)

    def report(queue, redrive):
        redrive.get(queue, 0)
        requests = len(sqs.calls)
        startup.report(queue, redrive, OPTIONS)
        assert len(sqs.calls) == requests
        return caplog.records[-1]

    return report


def policy(sqs, receives):
    arn = sqs.queue_attributes(sqs.create_queue("dead", {}, {}), ["QueueArn"])["QueueArn"]
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})}


@pytest.mark.parametrize(("receives", "times"), [(1, "1 receive"), (5, "5 receives")])
def test_a_queue_with_a_redrive_policy(sqs, queues, report, receives, times):
    sqs.create_queue("app-a-b", policy(sqs, receives), {})
    record = report(queues.find_or_create("a.b"), RedriveBook())
    assert record.getMessage() == (
        f"queue 'app-a-b' (Celery's 'a.b') found {PLACE}"
        f"dead letters go to 'dead' after {times}; visibility timeout 90 s"
    )
    assert record.sqs == {
        "queue": "a.b",
        "sqs_name": "app-a-b",
        "url": f"{ENDPOINT}/{ACCOUNT}/app-a-b",
        "region": REGION,
        "account": ACCOUNT,
        "origin": "found",
        "dead_letter_queue": "dead",
        "max_receive_count": receives,
        "visibility_timeout": 90,
        "weight": 1,
        "max_running": None,
        "not_allowed": [],
    }


@pytest.mark.parametrize("option", [True, False])
@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (None, "no redrive policy"),
        (DENIED, "redrive policy not known, since sqs:GetQueueAttributes is not allowed"),
        (UnavailableError("No answer."), "redrive policy not known, since No answer"),
    ],
)
def test_a_queue_without_a_redrive_policy_that_we_know_of(sqs, queues, report, error, policy, option):
    if error is not None:
        sqs.fail_next("GetQueueAttributes", error)
    letters = queues.find_or_create("letters")
    book = RedriveBook(lambda _: (lambda: letters) if option else None)
    record = report(queues.find_or_create("a.b"), book)
    told = "; dead letters go to 'app-letters', by the option dead_letter_queue"
    none = "" if error else " and no dead_letter_queue"
    assert f"created {PLACE}{policy}{told if option else none}; visibility" in record.getMessage()
    assert record.sqs["dead_letter_queue"] == ("app-letters" if option else None)
    assert record.sqs["not_allowed"] == (["sqs:GetQueueAttributes"] if error is DENIED else [])


def test_a_name_that_is_the_same_is_said_once(sqs, report):
    assert (
        report(Queues(sqs).find_or_create("a"), RedriveBook())
        .getMessage()
        .startswith("queue 'a' created at ")
    )


@pytest.mark.parametrize(
    ("order", "told"),
    [("fair", ""), ("strict", "; strict order, place 2"), ("weighted", "; weighted order, weight 3")],
)
def test_a_queue_with_options_of_its_own(sqs, caplog, order, told):
    caplog.set_level(logging.INFO)
    own = {"visibility_timeout": 600, "weight": 3, "max_running": 2}
    options = Options.parse({"queues": {"b": {}, "a": own}, "queue_order": order})
    startup.report(Queues(sqs).find_or_create("a"), RedriveBook(), options)
    assert caplog.messages[-1].endswith(f"; visibility timeout 600 s{told}; 2 at once at the most")
    assert [caplog.records[-1].sqs[name] for name in own] == [600, 3, 2]


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, 0), ({"visibility_timeout": 12 * 3600}, 0), ({"visibility_timeout": 24 * 3600}, 1)],
)
def test_a_visibility_timeout_that_sqs_does_not_take_is_told(caplog, given, told):
    startup.warn_of_clamped(given)
    assert caplog.text.count("visibility_timeout=86400 is longer than SQS hides a message") == told
    assert len(caplog.records) == told


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (None, []),
        (StoreUnavailableError("it does not answer"), []),  # its guard says so
        (StoreError("no such table; create it"), ["refuses: no such table; create it"]),
    ],
    ids=["well", "unreachable", "refusing"],
)
def test_a_store_of_keys_that_refuses_is_told_at_the_start(caplog, error, lines):
    startup.ask_store(MemoryStore() if error is None else Refusing(error))
    assert [message[-len("refuses: no such table; create it") :] for message in caplog.messages] == lines
