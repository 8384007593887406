"""Queues are subscribed to topics, and unsubscribed when they are gone."""

from __future__ import annotations

import logging
import uuid

import pytest
from support.fake_topics import FakeSNS

from celery_sqs_visibility.aws import topics
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.sns import Subscription
from celery_sqs_visibility.aws.topics import LOOKS_APART_SECONDS, Topic, subscribe, sweep
from celery_sqs_visibility.errors import AccessDeniedError


@pytest.fixture
def topic(sqs):
    sns = FakeSNS(sqs)
    return Topic("news", sns.create_topic("news", {}, {}), sns)


@pytest.fixture
def make(sqs, topic):
    """A subscribed queue of that name, which may be gone already."""

    def make(name, *, gone=False):
        queue = Queue(name, sqs.create_queue(name, {}, {}), sqs)
        subscribe(queue, topic)
        if gone:
            sqs.delete_queue(queue.url)
        return queue

    return make


@pytest.fixture
def waits():
    return []


def own(prefix=""):
    """A name that is made up for one process."""
    return f"{prefix}bcast-{uuid.uuid4()}"


def names(topic):
    return {each.endpoint.rpartition(":")[2] for each in topic.sns.subscribed.values()}


def test_the_policy_is_set_before_the_queue_is_subscribed_and_once(sqs, topic, make):
    queue = make("q")
    subscribe(queue, topic)
    assert [action for action, _ in sqs.calls].count("SetQueueAttributes") == 1
    assert topic.sns.actions()[1:] == ["Subscribe", "Subscribe"]
    assert topic.arn in sqs.queue_attributes(queue.url, ["Policy"])["Policy"]


def test_a_queue_that_may_not_be_opened_to_the_topic_is_not_subscribed(sqs, topic):
    queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
    sqs.fail_next("SetQueueAttributes", AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        subscribe(queue, topic)
    assert "Subscribe" not in topic.sns.actions()


def test_queues_that_are_gone_are_unsubscribed_after_a_second_look(topic, make, waits, caplog):
    caplog.set_level(logging.INFO)
    mine = make(own())
    for _ in range(3):
        make(own(), gone=True)
    sweep(topic, mine, "", waits.append)
    assert (names(topic), waits) == ({mine.name}, [LOOKS_APART_SECONDS])
    assert caplog.text.count("since it is gone") == 3


def test_a_queue_that_sqs_did_not_see_at_once_stays(sqs, topic, make, caplog):
    sqs.names_rest = False
    mine, new = make(own()), make(own(), gone=True)
    sweep(topic, mine, "", lambda _: sqs.create_queue(new.name, {}, {}))
    assert names(topic) == {mine.name, new.name}
    assert caplog.messages == []


def test_nothing_is_waited_for_where_no_queue_is_gone(topic, make, waits):
    sweep(topic, make(own()), "", waits.append)
    assert waits == []


@pytest.mark.parametrize(
    ("protocol", "endpoint"),
    [
        ("sqs", "arn:aws:sqs:us-east-1:000000000000:app-web-1"),
        ("sqs", f"arn:aws:sqs:us-east-1:000000000000:{own('other-')}"),
        ("sqs", f"arn:aws:sqs:us-east-1:999999999999:{own('app-')}"),
        ("sqs", f"arn:aws:sqs:eu-west-1:000000000000:{own('app-')}"),
        ("https", f"https://example.com/{own('app-')}"),
    ],
    ids=["a name that may come back", "another prefix", "another account", "another region", "no queue"],
)
def test_what_may_be_others_is_left_alone(topic, make, waits, protocol, endpoint):
    topic.sns.subscribed[f"{topic.arn}:theirs"] = Subscription(f"{topic.arn}:theirs", protocol, endpoint)
    sweep(topic, make(own("app-")), "app-", waits.append)
    assert len(names(topic)) == 2
    assert "Unsubscribe" not in topic.sns.actions()


def test_a_sweep_looks_for_so_many_queues_at_the_most(sqs, topic, make, waits, monkeypatch):
    monkeypatch.setattr(topics, "MAX_LOOKS", 2)
    monkeypatch.setattr(topics, "MAX_PAGES", 3)
    mine = make(own())
    for _ in range(9):
        make(own(), gone=True)
    before = len(sqs.calls)
    sweep(topic, mine, "", waits.append)
    assert [action for action, _ in sqs.calls[before:]].count("GetQueueUrl") <= 4
    assert topic.sns.actions().count("ListSubscriptionsByTopic") == 3


def test_without_the_right_a_warning_names_it(topic, make, caplog):
    mine = make(own())
    topic.sns.failures["ListSubscriptionsByTopic"] = AccessDeniedError("allow it")
    sweep(topic, mine, "")
    assert "cannot sweep subscriptions of queues that are gone" in caplog.text
    assert "allow it" in caplog.text
