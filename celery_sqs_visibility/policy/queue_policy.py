"""A queue's policy: the statement that lets SNS topics send to the queue.

kombu's SQS transport writes the same one (kombu/transport/SQS/SNS.py: `_generate_new_sqs_policy`), so that
workers of both may share a queue.
"""

from __future__ import annotations

import json
from typing import Any, Final

#: The statement's id, by which kombu finds it, too.
STATEMENT_ID: Final = "KombuManaged"

VERSION: Final = "2012-10-17"


def allow_topic(policy: str | None, queue_arn: str, topic_arn: str) -> str | None:
    """Return the policy that lets the topic send to the queue as well; `None` if `policy` does already.

    All that others have written stays, and so do the statement's topics: a queue may be bound to several.
    `policy` is the queue attribute of that name, `None` if there is none.
    """
    document: dict[str, Any] = json.loads(policy) if policy else {"Version": VERSION}
    given = document.get("Statement") or []
    statements: list[dict[str, Any]] = [given] if isinstance(given, dict) else given
    others = [each for each in statements if each.get("Sid") != STATEMENT_ID]
    ours = next((each for each in statements if each not in others), None)
    topics = [] if ours is None else _topics(ours)
    statement = _statement(queue_arn, [*topics, *([] if topic_arn in topics else [topic_arn])])
    if statement == ours:
        return None
    return json.dumps({**document, "Statement": [*others, statement]})


def _statement(queue_arn: str, topics: list[str]) -> dict[str, Any]:
    return {
        "Sid": STATEMENT_ID,
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "SQS:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnLike": {"aws:SourceArn": topics if len(topics) > 1 else topics[0]}},
    }


def _topics(statement: dict[str, Any]) -> list[str]:
    condition = statement.get("Condition")
    arns = condition.get("ArnLike", {}).get("aws:SourceArn") if isinstance(condition, dict) else None
    return [arns] if isinstance(arns, str) else list(arns or [])
