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
LIST_TAGS: Final = "sqs:ListQueueTags"
GENERATE_DATA_KEY: Final = "kms:GenerateDataKey"
DECRYPT: Final = "kms:Decrypt"

#: The role of nobody: for people who make such requests by hand.
BY_HAND: Final[frozenset[str]] = frozenset()

#: A worker's own queue for broadcasts, which gets a new name at each start.
BROADCASTS: Final = "bcast-*"


#: For dead letters: looking at one means receiving it and making it visible again.
HANDLE: Final = ("sqs:GetQueueUrl", GET_ATTRIBUTES, RECEIVE, CHANGE_VISIBILITY, DELETE)


class Statement(NamedTuple):
    """Permissions that belong together, as one statement.

    Attributes:
        sid: the statement's id in a policy document.
        actions: the permissions.
        on: what they apply to, as docs/permissions.md names it.
        kind: the kind of the app's resources, in `Resources`; if there are none, there is no statement.
        roles: the processes that need them.
    """

    sid: str
    actions: tuple[str, ...]
    on: str
    kind: str
    roles: frozenset[str]


PERMISSIONS: Final = (
    Statement("Consume", (RECEIVE, DELETE, CHANGE_VISIBILITY, GET_ATTRIBUTES), "the queue", "queues", WORKER),
    Statement("Publish", (SEND,), "the queue", "queues", PRODUCER),
    Statement("SendOn", (SEND,), "the worker's own queue", "queues", WORKER),
    Statement("FindQueues", ("sqs:GetQueueUrl",), "the queue", "queues_without_url", BOTH | OPERATOR),
    Statement(
        "FindQueuesOfOthers",
        ("sqs:GetQueueUrl",),
        "a queue of `QueueOwnerAWSAccountId`, granted by that queue's policy",
        "queues_of_others",
        BOTH | OPERATOR,
    ),
    Statement("ReadPauses", (LIST_TAGS,), "the queue", "paused", WORKER),
    Statement("DeadLetters", (SEND,), "the dead-letter queue", "dead_letters", WORKER),
    Statement(
        "PlainDeadLetters",
        (SEND, "sqs:GetQueueUrl"),
        "the queue of the option `dead_letter_queue`",
        "plain_dead_letters",
        WORKER,
    ),
    Statement("CountDeadLetters", (GET_ATTRIBUTES,), "the dead-letter queue", "sampled", WORKER),
    Statement("CreateQueues", ("sqs:CreateQueue",), "the queue", "created", BOTH),
    Statement("TagQueues", ("sqs:TagQueue",), "the queue", "tagged", BOTH),
    Statement(
        "CreateDeadLetterQueues",
        ("sqs:GetQueueUrl", GET_ATTRIBUTES, "sqs:CreateQueue"),
        "the dead-letter queue",
        "created_letters",
        BOTH,
    ),
    Statement("Decrypt", (DECRYPT,), "the KMS key of an encrypted queue", "keys", BOTH | OPERATOR),
    Statement("Encrypt", (GENERATE_DATA_KEY,), "the KMS key of an encrypted queue", "keys", BOTH | OPERATOR),
    Statement(
        "AssumeRole",
        ("sts:AssumeRole",),
        "the role of `sts_role_arn`, of the connection or of a predefined queue",
        "roles",
        BOTH | OPERATOR,
    ),
    Statement(
        "ExclusiveKeys", ("dynamodb:UpdateItem",), "the table of `coordination_store`", "key_tables", WORKER
    ),
    Statement("PutPayloads", ("s3:PutObject",), "the bucket of the option `payload_store`", "payloads", BOTH),
    Statement(
        "TakePayloads",
        ("s3:GetObject", "s3:DeleteObject"),
        "the bucket of the option `payload_store`",
        "payloads",
        WORKER,
    ),
    Statement(
        "FindPayloads", ("s3:ListBucket",), "the bucket of the option `payload_store`", "buckets", WORKER
    ),
    Statement("Topics", ("sns:CreateTopic", "sns:TagResource"), "the topic", "topics", BOTH),
    Statement("PublishToTopics", ("sns:Publish",), "the topic", "topics", BOTH),
    Statement("PublishToPredefined", ("sns:Publish",), "the topic", "predefined_topics", BOTH),
    Statement("Subscribe", ("sns:Subscribe",), "the topic", "topics", WORKER),
    Statement("SubscribeToPredefined", ("sns:Subscribe",), "the topic", "predefined_topics", WORKER),
    Statement(
        "OpenQueues",
        (GET_ATTRIBUTES, "sqs:SetQueueAttributes"),
        "the worker's `Broadcast` queue",
        "broadcasts",
        WORKER,
    ),
    Statement(
        "OwnQueues", ("sqs:CreateQueue", "sqs:DeleteQueue"), "`bcast-*`, subscriptions", "broadcasts", WORKER
    ),
    Statement("EndSubscriptions", ("sns:Unsubscribe",), "`bcast-*`, subscriptions", "subscriptions", WORKER),
    Statement("Sweep", ("sns:ListSubscriptionsByTopic",), "the topic, `bcast-*`", "topics", WORKER),
    Statement("SweepQueues", ("sqs:GetQueueUrl",), "the topic, `bcast-*`", "broadcasts", WORKER),
    Statement(
        "ConsumeBroadcasts",
        (RECEIVE, DELETE, CHANGE_VISIBILITY, SEND),
        "the worker's `Broadcast` queue",
        "broadcasts",
        WORKER,
    ),
    Statement(
        "ControlQueues",
        ("sqs:CreateQueue", "sqs:TagQueue", "sqs:DeleteQueue", SEND, RECEIVE),
        "`celery-control-*`",
        "control_queues",
        WORKER | OPERATOR,
    ),
    Statement("SweepControl", (LIST_TAGS,), "`celery-control-*`", "control_queues", WORKER | OPERATOR),
    Statement("SeeMonitors", ("sqs:GetQueueAttributes",), "`celery-control-*`", "control_queues", WORKER),
    Statement("ListControl", (LIST_QUEUES,), "`*`", "lists", WORKER | OPERATOR),
    Statement("TellMonitors", ("sqs:SendMessage",), "`celery-control-celeryev-*`", "monitors", PRODUCER),
    Statement("ListMonitors", (LIST_QUEUES,), "`*`", "monitor_lists", PRODUCER),
    Statement(
        "SampleAges",
        ("cloudwatch:GetMetricData",),
        "`*`: CloudWatch knows no resources",
        "sampled_ages",
        WORKER,
    ),
    # Of operators alone; docs/permissions.md lists them by command.
    Statement("KeepPauses", (LIST_TAGS, "sqs:TagQueue", "sqs:UntagQueue"), "the queue", "paused", OPERATOR),
    Statement("CountAndSendBack", (GET_ATTRIBUTES, SEND), "the queue", "queues", OPERATOR),
    Statement("HandleDeadLetters", HANDLE, "the dead-letter queue", "dead_letters", OPERATOR),
    Statement("HandlePlainDeadLetters", HANDLE, "the dead-letter queue", "plain_dead_letters", OPERATOR),
    Statement(
        "MoveDeadLetters",
        ("sqs:StartMessageMoveTask", "sqs:ListMessageMoveTasks"),
        "the dead-letter queue",
        "dead_letters",
        OPERATOR,
    ),
    Statement(
        "CreatePlannedQueues",
        ("sqs:GetQueueUrl", GET_ATTRIBUTES, "sqs:CreateQueue", "sqs:TagQueue", "sqs:SetQueueAttributes"),
        "the queue",
        "planned",
        OPERATOR,
    ),
    Statement("ReadPayloads", ("s3:GetObject",), "the bucket", "payloads", OPERATOR),
    Statement("Ages", ("cloudwatch:GetMetricData",), "`*`", "ages", OPERATOR),
    Statement(
        "SearchLogs",
        ("logs:StartQuery", "logs:GetQueryResults", "logs:FilterLogEvents"),
        "the log group",
        "",
        OPERATOR,
    ),
    Statement(
        "OfAFunction",
        (CHANGE_VISIBILITY,),
        "the queue of a [Lambda function](lambda.md#permissions)",
        "",
        BY_HAND,
    ),
    Statement("Purge", ("sqs:PurgeQueue", GET_ATTRIBUTES), "the queue", "", BY_HAND),
    Statement("Delete", ("sqs:DeleteQueue",), "the queue", "", BY_HAND),
)

#: ARNs by `Statement.kind`.
Resources = Mapping[str, Iterable[str]]

#: The end of the ARN of a key that is named by an alias: IAM does not accept aliases as resources.
_ANY_KEY: Final = ":key/*"


def policy_document(role: Role, resources: Resources, aliases: Iterable[str] = ()) -> dict[str, Any]:
    """The minimum permissions of a role, as a document for IAM.

    `aliases` names keys whose ARN is unknown: statements about any key are limited to these.
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
                condition = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": sorted(set(aliases))}}
                by_alias = _statement(f"{permission.sid}ByAlias", permission, any_key)
                statements.append({**by_alias, "Condition": condition})
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(sid: str, permission: Statement, arns: list[str]) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(permission.actions),
        "Resource": arns if len(arns) > 1 else arns[0],
    }
