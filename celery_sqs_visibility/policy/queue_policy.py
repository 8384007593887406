"""A queue's policy: the statement that lets SNS topics send to the queue.

kombu's SQS transport writes the same one (kombu/transport/SQS/SNS.py: `_generate_new_sqs_policy`), so that
workers of both may share a queue.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

#: The statement's id, by which kombu finds it, too.
STATEMENT_ID: Final = "KombuManaged"

VERSION: Final = "2012-10-17"

#: The condition's key for the topic. Amazon compares such keys without case.
SOURCE: Final = "aws:SourceArn"

#: Operators by which a condition lets topics in. All of a condition's must hold.
OPERATORS: Final = ("ArnLike", "ArnEquals", "StringLike", "StringEquals")


def allow_topics(policy: str | None, queue_arn: str, topic_arns: Sequence[str]) -> str | None:
    """Return the policy that lets the topics send to the queue as well; `None` if `policy` does already.

    All other statements stay, and so do this one's topics and what else its condition asks for.
    `policy` is the queue attribute of that name, `None` if there is none.
    """
    document: dict[str, Any] = json.loads(policy) if policy else {"Version": VERSION}
    given = document.get("Statement") or []
    statements: list[dict[str, Any]] = [given] if isinstance(given, dict) else given
    others = [each for each in statements if each.get("Sid") != STATEMENT_ID]
    ours = next((each for each in statements if each not in others), {})
    statement = {
        "Sid": STATEMENT_ID,
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "SQS:SendMessage",
        "Resource": queue_arn,
        "Condition": _condition(ours.get("Condition"), topic_arns),
    }
    if statement == ours:
        return None
    return json.dumps({**document, "Statement": [*others, statement]})


def _condition(given: Any, topic_arns: Sequence[str]) -> dict[str, Any]:
    """The condition, with the topics in each place where it names some; in kombu's where it names none."""
    condition: dict[str, Any] = given if isinstance(given, dict) else {}
    if not any(_names_topics(operator, key) for operator, keys in condition.items() for key in keys):
        condition = {**condition, "ArnLike": {**condition.get("ArnLike", {}), SOURCE: []}}
    return {
        operator: {
            key: _with(values, topic_arns) if _names_topics(operator, key) else values
            for key, values in keys.items()
        }
        for operator, keys in condition.items()
    }


def _names_topics(operator: str, key: str) -> bool:
    return operator.removesuffix("IfExists") in OPERATORS and key.lower() == SOURCE.lower()


def _with(values: str | list[str], topic_arns: Sequence[str]) -> str | list[str]:
    """The condition's values, with the topics that are not among them. One alone is no list, as in kombu."""
    arns = [values] if isinstance(values, str) else values
    if set(topic_arns) <= set(arns):
        return values
    every = list(dict.fromkeys([*arns, *topic_arns]))
    return every if len(every) > 1 else every[0]
