"""Permissions that credentials need, in one table for `sqs permissions`, `doctor` and docs/permissions.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

Role = Literal["worker", "producer", "operator"]

WORKER: Final = frozenset({"worker"})
PRODUCER: Final = frozenset({"producer"})
BOTH: Final = WORKER | PRODUCER

#: People who call `celery -A proj sqs`, `celery inspect` and `celery control`.
OPERATOR: Final = frozenset({"operator"})

#: Permissions that `celery sqs doctor` knows, too.
RECEIVE: Final = "sqs:ReceiveMessage"
DELETE: Final = "sqs:DeleteMessage"
CHANGE_VISIBILITY: Final = "sqs:ChangeMessageVisibility"
SEND: Final = "sqs:SendMessage"
GET_ATTRIBUTES: Final = "sqs:GetQueueAttributes"
LIST_QUEUES: Final = "sqs:ListQueues"
GENERATE_DATA_KEY: Final = "kms:GenerateDataKey"
DECRYPT: Final = "kms:Decrypt"

#: Nobody's role: for people who make such requests by hand.
BY_HAND: Final[frozenset[str]] = frozenset()

#: A worker's own queue for broadcasts: its name is made up at each start.
BROADCASTS: Final = "bcast-*"


#: With dead letters: to look at one is to receive it, and to show it again at once.
HANDLE: Final = (
    "sqs:GetQueueUrl",
    GET_ATTRIBUTES,
    RECEIVE,
    CHANGE_VISIBILITY,
    DELETE,
)


class Permission(NamedTuple):
    """Permissions that go together, as one statement.

    Attributes:
        sid: of the statement in a policy document.
        actions: the permissions.
        on: the thing that they are for, as docs/permissions.md names it.
        kind: the things of an app, in `Resources`; none of that kind, no statement.
        roles: the processes that need them.
    """

    sid: str
    actions: tuple[str, ...]
    on: str
    kind: str
    roles: frozenset[str]


#: Permissions of operators alone; docs/permissions.md lists them by command.
OF_COMMANDS: Final = (
    Permission("CountAndSendBack", (GET_ATTRIBUTES, SEND), "the queue", "queues", OPERATOR),
    Permission("HandleDeadLetters", HANDLE, "the dead-letter queue", "dead_letters", OPERATOR),
    Permission("HandlePlainDeadLetters", HANDLE, "the dead-letter queue", "plain_dead_letters", OPERATOR),
    Permission(
        "MoveDeadLetters",
        ("sqs:StartMessageMoveTask", "sqs:ListMessageMoveTasks"),
        "the dead-letter queue",
        "dead_letters",
        OPERATOR,
    ),
    Permission(
        "CreatePlannedQueues",
        (
            "sqs:GetQueueUrl",
            GET_ATTRIBUTES,
            "sqs:CreateQueue",
            "sqs:TagQueue",
            "sqs:SetQueueAttributes",
        ),
        "the queue",
        "planned",
        OPERATOR,
    ),
    Permission("ReadPayloads", ("s3:GetObject",), "the bucket", "payloads", OPERATOR),
    Permission("Ages", ("cloudwatch:GetMetricData",), "`*`", "ages", OPERATOR),
)

PERMISSIONS: Final = (
    Permission(
        "Consume",
        (RECEIVE, DELETE, CHANGE_VISIBILITY, GET_ATTRIBUTES),
        "the queue",
        "queues",
        WORKER,
    ),
    Permission("Publish", (SEND,), "the queue", "queues", PRODUCER),
    Permission("SendOn", (SEND,), "the worker's own queue", "queues", WORKER),
    Permission("FindQueues", ("sqs:GetQueueUrl",), "the queue", "queues_without_url", BOTH | OPERATOR),
    Permission(
        "FindQueuesOfOthers",
        ("sqs:GetQueueUrl",),
        "a queue of `QueueOwnerAWSAccountId`, granted by that queue's policy",
        "queues_of_others",
        BOTH | OPERATOR,
    ),
    Permission("DeadLetters", (SEND,), "the dead-letter queue", "dead_letters", WORKER),
    Permission(
        "PlainDeadLetters",
        (SEND, "sqs:GetQueueUrl"),
        "the queue of the option `dead_letter_queue`",
        "plain_dead_letters",
        WORKER,
    ),
    Permission("CountDeadLetters", (GET_ATTRIBUTES,), "the dead-letter queue", "sampled", WORKER),
    Permission("CreateQueues", ("sqs:CreateQueue",), "the queue", "created", BOTH),
    Permission("TagQueues", ("sqs:TagQueue",), "the queue", "tagged", BOTH),
    Permission(
        "CreateDeadLetterQueues",
        ("sqs:GetQueueUrl", GET_ATTRIBUTES, "sqs:CreateQueue"),
        "the dead-letter queue",
        "created_letters",
        BOTH,
    ),
    Permission("Decrypt", (DECRYPT,), "the KMS key of an encrypted queue", "keys", BOTH | OPERATOR),
    Permission("Encrypt", (GENERATE_DATA_KEY,), "the KMS key of an encrypted queue", "keys", BOTH | OPERATOR),
    Permission(
        "AssumeRole",
        ("sts:AssumeRole",),
        "the role of `sts_role_arn`, of the connection or of a predefined queue",
        "roles",
        BOTH | OPERATOR,
    ),
    Permission(
        "ExclusiveKeys", ("dynamodb:UpdateItem",), "the table of `coordination_store`", "key_tables", WORKER
    ),
    Permission(
        "PutPayloads", ("s3:PutObject",), "the bucket of the option `payload_store`", "payloads", BOTH
    ),
    Permission(
        "TakePayloads",
        ("s3:GetObject", "s3:DeleteObject"),
        "the bucket of the option `payload_store`",
        "payloads",
        WORKER,
    ),
    Permission(
        "FindPayloads", ("s3:ListBucket",), "the bucket of the option `payload_store`", "buckets", WORKER
    ),
    Permission("Topics", ("sns:CreateTopic", "sns:TagResource"), "the topic", "topics", BOTH),
    Permission("PublishToTopics", ("sns:Publish",), "the topic", "topics", BOTH),
    Permission("PublishToPredefined", ("sns:Publish",), "the topic", "predefined_topics", BOTH),
    Permission("Subscribe", ("sns:Subscribe",), "the topic", "topics", WORKER),
    Permission("SubscribeToPredefined", ("sns:Subscribe",), "the topic", "predefined_topics", WORKER),
    Permission(
        "OpenQueues",
        (GET_ATTRIBUTES, "sqs:SetQueueAttributes"),
        "the worker's `Broadcast` queue",
        "broadcasts",
        WORKER,
    ),
    Permission(
        "OwnQueues",
        ("sqs:CreateQueue", "sqs:DeleteQueue"),
        "`bcast-*`, subscriptions",
        "broadcasts",
        WORKER,
    ),
    Permission("EndSubscriptions", ("sns:Unsubscribe",), "`bcast-*`, subscriptions", "subscriptions", WORKER),
    Permission("Sweep", ("sns:ListSubscriptionsByTopic",), "the topic, `bcast-*`", "topics", WORKER),
    Permission("SweepQueues", ("sqs:GetQueueUrl",), "the topic, `bcast-*`", "broadcasts", WORKER),
    Permission(
        "ConsumeBroadcasts",
        (RECEIVE, DELETE, CHANGE_VISIBILITY, SEND),
        "the worker's `Broadcast` queue",
        "broadcasts",
        WORKER,
    ),
    Permission(
        "ControlQueues",
        (
            "sqs:CreateQueue",
            "sqs:TagQueue",
            "sqs:DeleteQueue",
            SEND,
            RECEIVE,
        ),
        "`celery-control-*`",
        "control_queues",
        WORKER | OPERATOR,
    ),
    Permission(
        "SweepControl", ("sqs:ListQueueTags",), "`celery-control-*`", "control_queues", WORKER | OPERATOR
    ),
    Permission("SeeMonitors", ("sqs:GetQueueAttributes",), "`celery-control-*`", "control_queues", WORKER),
    Permission("ListControl", (LIST_QUEUES,), "`*`", "lists", WORKER | OPERATOR),
    Permission("TellMonitors", ("sqs:SendMessage",), "`celery-control-celeryev-*`", "monitors", PRODUCER),
    Permission("ListMonitors", (LIST_QUEUES,), "`*`", "monitor_lists", PRODUCER),
    Permission(
        "SampleAges",
        ("cloudwatch:GetMetricData",),
        "`*`: CloudWatch knows no resources",
        "sampled_ages",
        WORKER,
    ),
    *OF_COMMANDS,
    Permission(
        "OfAFunction",
        (CHANGE_VISIBILITY,),
        "the queue of a [Lambda function](lambda.md#permissions)",
        "",
        BY_HAND,
    ),
    Permission("Purge", ("sqs:PurgeQueue", GET_ATTRIBUTES), "the queue", "", BY_HAND),
    Permission("Delete", ("sqs:DeleteQueue",), "the queue", "", BY_HAND),
)

#: ARNs by `Permission.kind`.
Resources = Mapping[str, Iterable[str]]

#: The end of the ARN for a key that is named by an alias: IAM knows no aliases as resources.
_ANY_KEY: Final = ":key/*"


def policy_document(role: Role, resources: Resources, aliases: Iterable[str] = ()) -> dict[str, Any]:
    """The least permissions of that role, as IAM reads them.

    `aliases` are the names of the keys whose ARN is not known: statements on any key are for these alone.
    """
    statements: list[dict[str, Any]] = []
    for permission in PERMISSIONS:
        if role in permission.roles:
            arns = list(dict.fromkeys(resources.get(permission.kind, ())))
            exact = [arn for arn in arns if not arn.endswith(_ANY_KEY)]
            any_key = [arn for arn in arns if arn.endswith(_ANY_KEY)]
            if exact:
                statements.append(_statement(permission.sid, permission, exact))
            if any_key:
                condition = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": sorted(aliases)}}
                by_alias = _statement(f"{permission.sid}ByAlias", permission, any_key)
                statements.append({**by_alias, "Condition": condition})
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(sid: str, permission: Permission, arns: list[str]) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(permission.actions),
        "Resource": arns if len(arns) > 1 else arns[0],
    }
