"""The statement of a queue's policy that lets topics send."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.topics import allow_topics

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
topics = st.lists(st.sampled_from("abc").map(TOPIC), min_size=1)


def sources(policy):
    (ours,) = (each for each in policy["Statement"] if each["Sid"] == "KombuManaged")
    arns = ours["Condition"]["ArnLike"]["aws:SourceArn"]
    return [arns] if isinstance(arns, str) else arns


def test_it_is_kombus():
    assert json.loads(allow_topics(None, QUEUE, [TOPIC("news")])) == KOMBUS
    assert allow_topics(json.dumps(KOMBUS), QUEUE, [TOPIC("news")]) is None


@given(others, topics)
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


@given(topics, topics)
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
