"""Message bodies of other AWS services, as Amazon's developer guides show them, shortened."""

import json

TOPIC = "arn:aws:sns:eu-central-1:123456789012:uploads"


def s3_record(bucket="shop", key="2026/day+1%3D.csv", event="ObjectCreated:Put"):
    """Amazon S3 User Guide, "Event message structure": the key is URL-encoded."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "eu-central-1",
        "eventTime": "2026-06-01T08:00:00.000Z",
        "eventName": event,
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "imports",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": key, "size": 1024, "eTag": "d41d8cd9", "sequencer": "0055AED6DCD90281E5"},
        },
    }


def s3_notification(*records):
    return {"Records": list(records or [s3_record()])}


S3_TEST = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2026-06-01T08:00:00.000Z",
    "Bucket": "shop",
    "RequestId": "5582815E1AEA5ADF",
    "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR",
}


def sns(message, kind="Notification"):
    """Amazon SNS Developer Guide, "Amazon SNS message formats", without raw delivery."""
    return {
        "Type": kind,
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": TOPIC,
        "Message": message if isinstance(message, str) else json.dumps(message),
        "Timestamp": "2026-06-01T08:00:00.000Z",
        "SignatureVersion": "1",
    }


def eventbridge(source="aws.s3", detail_type="Object Created", **detail):
    """Amazon S3 User Guide, "EventBridge event message structure": the key is plain."""
    about = {"bucket": {"name": "shop"}, "object": {"key": "2026/day 1=.csv", "size": 1024}}
    return {
        "version": "0",
        "id": "17793124-05d4-b198-2fde-7ededc63b103",
        "detail-type": detail_type,
        "source": source,
        "account": "123456789012",
        "time": "2026-06-01T08:00:00Z",
        "region": "eu-central-1",
        "resources": ["arn:aws:s3:::shop"],
        "detail": detail or {"version": "0", **about},
    }
