"""Queues whose names and attributes are hard to write, with policies."""

import pytest

from celery_sqs_visibility.operate.templates.stack import Stack
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues

POLICY = {"Version": "2012-10-17", "Statement": []}

#: As `sqs permissions` names the queue `a.b`, and a thing that no template makes.
ARN = "arn:aws:sqs:us-east-1:*:a-b"
KEY = "arn:aws:kms:us-east-1:*:key/${key}"


@pytest.fixture
def plans():
    attributes = {"KmsMasterKeyId": "alias/${key}", "SqsManagedSseEnabled": False, "Policy": POLICY}
    options = {"sqs-creation-attributes": attributes, "queue_tags": {"team": 'a "b"'}}
    return plan_queues(["a.b", "a-b.fifo"], Options.parse(options), {"a.b": [20]})


@pytest.fixture
def stack(plans):
    statement = {"Effect": "Allow", "Action": ["sqs:SendMessage"], "Resource": [ARN, KEY]}
    condition = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": ["alias/a"]}}
    document = {"Version": "2012-10-17", "Statement": [{**statement, "Condition": condition}]}
    return Stack(plans, {"worker": document}, {ARN: "a-b"})
