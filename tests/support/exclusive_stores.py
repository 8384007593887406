"""Where tests of exclusive tasks keep their keys."""

from __future__ import annotations

import uuid

import boto3


def create_table(**client):
    """Make a DynamoDB table as docs/exclusive-tasks.md says; its name."""
    name = f"exclusive-{uuid.uuid4().hex[:8]}"
    dynamodb = boto3.client("dynamodb", region_name="us-east-1", **client)
    dynamodb.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    dynamodb.close()
    return name
