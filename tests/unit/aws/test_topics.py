"""From a fanout exchange to its topic, and from there to the queues that are subscribed."""

import json
import logging
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_topics import FakeSNS

from celery_sqs_visibility.aws import topics as module
from celery_sqs_visibility.aws.queues import Queue, Queues
from celery_sqs_visibility.aws.sns import Subscription
from celery_sqs_visibility.aws.topics import (
    LOOKS_APART_SECONDS,
    TAGS,
    Topic,
    Topics,
    allow_topics,
    subscribe,
    sweep,
)
from celery_sqs_visibility.errors import AccessDeniedError, RequestRefusedError
from celery_sqs_visibility.policy.predefined import PredefinedTopic

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


def test_without_permission_to_create_it_the_sentence_names_the_permissions(topics, sns):
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
    monkeypatch.setattr(module, "MAX_LOOKS", 2)
    monkeypatch.setattr(module, "MAX_PAGES", 3)
    mine = make(own())
    for _ in range(9):
        make(own(), gone=True)
    before = len(sqs.calls)
    sweep(topic, mine, "", waits.append)
    assert [action for action, _ in sqs.calls[before:]].count("GetQueueUrl") <= 4
    assert topic.sns.actions().count("ListSubscriptionsByTopic") == 3


def test_without_permission_to_sweep_a_warning_names_it(topic, make, caplog):
    mine = make(own())
    topic.sns.failures["ListSubscriptionsByTopic"] = AccessDeniedError("allow it")
    sweep(topic, mine, "")
    assert "cannot remove subscriptions of deleted queues" in caplog.text
    assert "allow it" in caplog.text


QUEUE = "arn:aws:sqs:us-east-1:123456789012:q"
TOPIC = "arn:aws:sns:us-east-1:123456789012:{}".format

#: As kombu 5.7 writes it (kombu/transport/SQS/SNS.py: `_generate_new_sqs_policy`).
KOMBUS = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Sid": "KombuManaged",
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "SQS:SendMessage",
            "Resource": QUEUE,
            "Condition": {"ArnLike": {"aws:SourceArn": TOPIC("news")}},
        }
    ],
}

others = st.lists(st.fixed_dictionaries({"Sid": st.sampled_from(["a", "b"])}), max_size=3)
arns = st.lists(st.sampled_from("abc").map(TOPIC), min_size=1)


def sources(policy):
    (ours,) = (each for each in policy["Statement"] if each["Sid"] == "KombuManaged")
    arns = ours["Condition"]["ArnLike"]["aws:SourceArn"]
    return [arns] if isinstance(arns, str) else arns


def test_it_is_kombus():
    assert json.loads(allow_topics(None, QUEUE, [TOPIC("news")])) == KOMBUS
    assert allow_topics(json.dumps(KOMBUS), QUEUE, [TOPIC("news")]) is None


@given(others, arns)
def test_every_topic_is_in_it_once_and_what_others_wrote_stays(others, topics):
    policy = json.dumps({"Version": "2012-10-17", "Statement": others})
    for topic in topics:
        policy = allow_topics(policy, QUEUE, [topic]) or policy
        assert allow_topics(policy, QUEUE, [topic]) is None
    found = json.loads(policy)
    assert [each for each in found["Statement"] if each["Sid"] != "KombuManaged"] == others
    assert sources(found) == list(dict.fromkeys(topics))


def test_a_single_statement_may_stand_without_a_list():
    policy = json.dumps({"Statement": {"Sid": "theirs"}})
    assert json.loads(allow_topics(policy, QUEUE, [TOPIC("a")]))["Statement"][0] == {"Sid": "theirs"}


def test_a_statement_of_that_id_that_allows_no_topic_is_written_anew():
    policy = json.dumps({**KOMBUS, "Statement": [{"Sid": "KombuManaged", "Condition": "none"}]})
    assert json.loads(allow_topics(policy, QUEUE, [TOPIC("news")])) == KOMBUS


@given(arns, arns)
def test_several_topics_are_written_at_once(first, more):
    policy = allow_topics(None, QUEUE, first)
    policy = allow_topics(policy, QUEUE, more) or policy
    assert sources(json.loads(policy)) == list(dict.fromkeys([*first, *more]))
    assert allow_topics(policy, QUEUE, [*more, *first]) is None


ACCOUNT = {"StringEquals": {"aws:SourceAccount": "123456789012"}}
A, B, NEWS = TOPIC("a"), TOPIC("b"), TOPIC("news")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"ArnLike": {"aws:SourceArn": A}, **ACCOUNT},
            {"ArnLike": {"aws:SourceArn": [A, NEWS]}, **ACCOUNT},
        ),
        (ACCOUNT, {**ACCOUNT, "ArnLike": {"aws:SourceArn": NEWS}}),
        ({"ArnLike": {"aws:SourceArn": [A, A]}}, {"ArnLike": {"aws:SourceArn": [A, NEWS]}}),
        ({"ArnEquals": {"aws:SourceArn": [A, B]}}, {"ArnEquals": {"aws:SourceArn": [A, B, NEWS]}}),
        ({"ArnLikeIfExists": {"AWS:SourceARN": A}}, {"ArnLikeIfExists": {"AWS:SourceARN": [A, NEWS]}}),
        (
            {"ArnLike": {"aws:SourceArn": NEWS}, "ArnEquals": {"aws:SourceArn": A}},
            {"ArnLike": {"aws:SourceArn": NEWS}, "ArnEquals": {"aws:SourceArn": [A, NEWS]}},
        ),
        (
            {"ArnLike": {"aws:SourceArn": A}, "ArnNotLike": {"aws:SourceArn": B}},
            {"ArnLike": {"aws:SourceArn": [A, NEWS]}, "ArnNotLike": {"aws:SourceArn": B}},
        ),
    ],
    ids=[
        "an account",
        "an account alone",
        "one twice",
        "a list",
        "other names",
        "two that must both hold",
        "a ban",
    ],
)
def test_what_others_ask_for_in_the_condition_stays(given, expected):
    policy = json.dumps({**KOMBUS, "Statement": [{**KOMBUS["Statement"][0], "Condition": given}]})
    written = allow_topics(policy, QUEUE, [NEWS])
    assert json.loads(written)["Statement"] == [{**KOMBUS["Statement"][0], "Condition": expected}]
    assert allow_topics(written, QUEUE, [NEWS]) is None


def test_a_list_of_one_topic_is_not_written_anew():
    condition = {"ArnLike": {"aws:SourceArn": [NEWS]}}
    policy = json.dumps({**KOMBUS, "Statement": [{**KOMBUS["Statement"][0], "Condition": condition}]})
    assert allow_topics(policy, QUEUE, [NEWS]) is None
