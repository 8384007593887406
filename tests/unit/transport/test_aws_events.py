"""Events of AWS: their names and records, by the shapes that Amazon documents."""

import pytest
from support.aws_events import S3_TEST, eventbridge, s3_notification, s3_record, sns

from celery_sqs_visibility import s3_object
from celery_sqs_visibility.transport.aws_events import contents, describe_aws_event, events_of

CREATED, REMOVED = s3_record(), s3_record(event="ObjectRemoved:Delete")
BRIDGE, NOTICE = eventbridge(), sns("an order was placed")


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (
            s3_notification(CREATED, REMOVED),
            [("s3:ObjectCreated:Put", CREATED), ("s3:ObjectRemoved:Delete", REMOVED)],
        ),
        (BRIDGE, [("aws.s3/Object Created", BRIDGE)]),
        (NOTICE, [("sns:uploads", NOTICE)]),
        (sns("", "SubscriptionConfirmation"), []),
        ({"Records": []}, []),
        ({"Records": [CREATED, {"eventSource": "shop"}]}, []),
        ({"Records": [CREATED, None]}, []),
        (
            {"Records": [{"eventSource": "aws:s3", "eventName": [[]]}]},
            [("s3:", {"eventSource": "aws:s3", "eventName": [[]]})],
        ),
        ({"order": 1}, []),
    ],
)
def test_names_and_records(body, events):
    assert events_of(body) == events


@pytest.mark.parametrize("carried", [s3_notification(), BRIDGE])
def test_what_sns_carries_goes_before_its_envelope(carried):
    assert contents(sns(carried)) == [carried, sns(carried)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (NOTICE, [NOTICE]),
        (sns("[1]"), [sns("[1]")]),
        (sns("[" * 100_000), [sns("[" * 100_000)]),
        ({**NOTICE, "Message": None}, [{**NOTICE, "Message": None}]),
        (S3_TEST, [S3_TEST]),
        ([1], []),
        (None, []),
    ],
    ids=range(7),
)
def test_other_contents(body, found):
    assert contents(body) == found


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (NOTICE, "an SNS message (raw message delivery is off)"),
        (sns("", "SubscriptionConfirmation"), "an SNS SubscriptionConfirmation"),
        (S3_TEST, "an S3 test event"),
        (BRIDGE, "an EventBridge event"),
        (s3_notification(), "an S3 event notification"),
        ({"Records": [{"eventSource": "aws:sqs"}]}, "an event of aws:sqs"),
        ({"Records": [{"EventSource": "aws:sns"}]}, "an event of aws:sns"),
        ({"Records": [{}]}, None),
        ({}, None),
        ([], None),
    ],
)
def test_kinds(body, kind):
    assert describe_aws_event(body) == kind


def test_the_key_of_an_object_is_as_s3_has_it():
    assert s3_object(CREATED) == ("shop", "2026/day 1=.csv", None)
    assert s3_object(BRIDGE) == ("shop", "2026/day 1=.csv", None)
    again = s3_record()
    again["s3"]["object"]["versionId"] = "v1"
    assert s3_object(again).version == "v1"
