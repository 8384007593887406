from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.queue_names import account_and_name, arn_of, beside, partition_of


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
