"""From a fanout exchange to its topic."""

from __future__ import annotations

import pytest
from support.fake_topics import FakeSNS

from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.topics import TAGS, PredefinedTopic, Topics
from celery_sqs_visibility.errors import AccessDeniedError, RequestRefusedError

ARN = "arn:aws:sns:us-east-1:000000000000:{}".format


@pytest.fixture
def sns(sqs):
    return FakeSNS(sqs)


@pytest.fixture
def topics(sqs, sns):
    return Topics(sns, Queues(sqs, prefix="app.").canonical_name, {}, lambda _: sns)


def test_names_attributes_and_tags_are_those_of_kombu(topics, sns):
    assert topics.find("my.news!").arn == ARN("app-my-news_")
    assert topics.find("orders.fifo").fifo
    assert sns.calls == [
        ("CreateTopic", ("app-my-news_", {"FifoTopic": "false"}, TAGS)),
        ("CreateTopic", ("app-orders.fifo", {"FifoTopic": "true"}, TAGS)),
    ]


def test_sns_is_asked_once_until_the_topic_is_forgotten(topics, sns):
    assert topics.find("news") is topics.find("news")
    topics.forget("news")
    topics.find("news")
    assert sns.actions() == ["CreateTopic", "CreateTopic"]


def test_a_topic_that_somebody_else_has_tagged_is_found(topics, sns):
    arn = sns.create_topic("app-news", {}, {"owner": "platform"})
    assert topics.find("news").arn == arn
    assert sns.calls[-1] == ("CreateTopic", ("app-news", {}, {}))


def test_another_refusal_is_raised(topics, sns):
    sns.failures["CreateTopic"] = RequestRefusedError("too many topics", code="TopicLimitExceeded")
    with pytest.raises(RequestRefusedError, match="too many"):
        topics.find("news")


def test_without_the_right_to_create_it_the_sentence_names_the_permissions(topics, sns):
    sns.failures["CreateTopic"] = AccessDeniedError("no")
    with pytest.raises(
        AccessDeniedError, match=r"allow sns:CreateTopic and sns:TagResource, or .*predefined"
    ):
        topics.find("news")


def test_predefined_topics_have_no_others_beside_them(sns):
    definition = PredefinedTopic(ARN("theirs"), region="eu-west-1")
    asked = []
    topics = Topics(FakeSNS(None), str, {"news": definition}, lambda each: asked.append(each) or sns)
    topic = topics.find("news")
    assert (topic.arn, topic.sns, topic.predefined, asked) == (ARN("theirs"), sns, True, [definition])
    with pytest.raises(
        RequestRefusedError, match=r"'nwes' is not in .*predefined_exchanges.* nearest is 'news'"
    ):
        topics.find("nwes")
    assert sns.calls == []
