"""Lambda's SQS event, as the developer guide shows it, becomes what ReceiveMessage answers."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.serverless.handler import message_of, records_of

#: AWS Lambda Developer Guide, "Using Lambda with Amazon SQS": a FIFO queue's.
RECORD = {
    "messageId": "11d6ee51-4cc7-4302-9e22-7cd8afdaadf5",
    "receiptHandle": "AQEBBX8nesZEXmkhsmZeyIE8iQAMig7qw...",
    "body": "Test message.",
    "attributes": {
        "ApproximateReceiveCount": "1",
        "SentTimestamp": "1573251510774",
        "SequenceNumber": "18849496460467696128",
        "MessageGroupId": "1",
        "SenderId": "AIDAIO23YVJENQZJOL4VO",
        "MessageDeduplicationId": "1",
        "ApproximateFirstReceiveTimestamp": "1573251510774",
    },
    "messageAttributes": {
        "kind": {
            "stringValue": "order",
            "stringListValues": [],
            "binaryListValues": [],
            "dataType": "String",
        },
        "seal": {"binaryValue": "AAE=", "dataType": "Binary"},
    },
    "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
    "eventSource": "aws:sqs",
    "eventSourceARN": "arn:aws:sqs:us-east-2:123456789012:fifo.fifo",
    "awsRegion": "us-east-2",
}


def test_a_record_is_a_received_message():
    assert records_of({"Records": [RECORD]}) == [RECORD]
    assert message_of(RECORD) == {
        "MessageId": RECORD["messageId"],
        "ReceiptHandle": RECORD["receiptHandle"],
        "Body": "Test message.",
        "MD5OfBody": RECORD["md5OfBody"],
        "Attributes": RECORD["attributes"],
        "MessageAttributes": {
            "kind": {"DataType": "String", "StringValue": "order"},
            "seal": {"DataType": "Binary", "BinaryValue": b"\0\1"},
        },
    }


@pytest.mark.parametrize(
    ("event", "got"),
    [
        ({"key1": "value1"}, r"the keys \['key1'\]"),
        ({"Records": [{"eventSource": "aws:s3"}]}, r"the keys \['Records'\]"),
        ({"Records": [None]}, "the keys"),
        ([], "a list"),
        (None, "a NoneType"),
    ],
)
def test_other_events_are_refused(event, got):
    with pytest.raises(ValueError, match=f"expected the event of an SQS event source mapping.*got {got}"):
        records_of(event)
