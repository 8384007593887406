"""Names of queues and ARNs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.SQS import Channel

from celery_sqs_visibility.policy.queue_names import (
    account_and_name,
    arn_of,
    beside,
    partition_of,
    sqs_name,
    why_illegal,
)


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("eu-west-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-east-1", "aws-us-gov"),
        ("us-isob-east-1", "aws-iso-b"),
        ("us-iso-east-1", "aws-iso"),
    ],
)
def test_arns_begin_with_the_partition_of_the_region(region, partition):
    assert partition_of(region) == partition


def test_an_arn_has_its_parts():
    arn = arn_of("sqs", "cn-north-1", "123456789012", "orders")
    assert arn == "arn:aws-cn:sqs:cn-north-1:123456789012:orders"
    assert account_and_name(arn) == ("123456789012", "orders")
    assert beside(arn, "dead") == "arn:aws-cn:sqs:cn-north-1:123456789012:dead"


@given(st.text(), st.sampled_from(["", "my.app-", "x/"]), st.sampled_from(["", ".fifo"]))
def test_sqs_names_are_kombus(name, prefix, suffix):
    assert sqs_name(name + suffix, prefix) == Channel.entity_name(None, prefix + name + suffix)


@pytest.mark.parametrize(
    ("name", "sqs"),
    [
        ("celery", "celery"),
        ("a.b", "a-b"),
        ("a.b.fifo", "a-b.fifo"),
        ("worker@host.celery.pidbox", "worker_host-celery-pidbox"),
        ("-_.!\"#$%&'()*+,/:;<=>?[]^`{|}~", "-_-" + "_" * 27),
    ],
)
def test_dots_become_hyphens_but_that_of_fifo_and_other_punctuation_underscores(name, sqs):
    assert sqs_name(name) == Channel.entity_name(None, name) == sqs


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 80, None),
        ("x" * 81, "81 characters"),
        ("x" * 75 + ".fifo", None),
        ("x" * 76 + ".fifo", "81 characters"),
        ("größe", "ASCII"),
        ("a b", "ASCII"),
        (".fifo", "ASCII"),
        ("", "ASCII"),
    ],
)
def test_a_name_has_80_characters_at_the_most_and_only_legal_ones(name, said):
    reason = why_illegal(name)
    assert (reason is None) if said is None else said in reason
