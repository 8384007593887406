"""Subscriptions of queues to topics, and the end of those whose queue is gone.

kombu's SQS transport writes the same statement into a queue's policy (kombu/transport/SQS/SNS.py:
`_generate_new_sqs_policy`), so that workers of both may share a queue.
"""

from __future__ import annotations

import json
import logging
import random
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.policy import queue_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_sqs_visibility.aws.queues import Queue
    from celery_sqs_visibility.aws.topics import Topic
    from celery_sqs_visibility.aws.topics_port import Subscription

logger = logging.getLogger(__name__)

#: Names that end so are made up for one process: such a queue, once gone, does not come back.
OWN_NAME: Final = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: A queue that is found neither now nor this many seconds later is gone. SQS may not see a new one at once.
LOOKS_APART_SECONDS: Final = 60

#: Most pages of a hundred subscriptions that one sweep reads, and most queues that it looks for.
MOST_PAGES: Final = 10
MOST_LOOKS: Final = 100


def subscribe(queue: Queue, topic: Topic, beside: Iterable[str] = ()) -> str:
    """Have the queue get what is published to the topic, as it is; return the subscription's ARN.

    The policy first: SNS drops what a queue does not take. SQS may tell the policy of a minute ago: what is
    missing in it is not written over.

    Args:
        queue: the queue.
        topic: the topic.
        beside: ARNs of the other topics from which this process has the queue get messages.

    Raises:
        SQSError: SQS or SNS has refused, or could not be asked.
    """
    attributes = queue.sqs.queue_attributes(queue.url, ["QueueArn", "Policy"])
    policy = allow_topics(attributes.get("Policy"), attributes["QueueArn"], [*beside, topic.arn])
    if policy is not None:
        queue.sqs.set_queue_attributes(queue.url, {"Policy": policy})
    return topic.sns.subscribe(topic.arn, attributes["QueueArn"])


def sweep(topic: Topic, beside: Queue, prefix: str, wait: Callable[[float], object] | None = None) -> None:
    """Unsubscribe queues that were made up for a process, and are gone. Logs errors, raises none.

    Only queues of the account and region of the queue `beside`, whose names begin with `prefix`: of others
    SQS tells nothing. A thread of its own, since it may wait.
    """
    try:
        start = queue_names.beside(beside.arn(), prefix)
        own = [each for each in _subscriptions(topic) if _may_be_stale(each, start)]
        looked_for = random.sample(own, min(len(own), MOST_LOOKS))
        missing = [each for each in looked_for if _is_missing(each, beside)]
        if missing:
            (wait or threading.Event().wait)(LOOKS_APART_SECONDS)
        for stale in missing:
            if _is_missing(stale, beside):
                topic.sns.unsubscribe(stale.arn)
                logger.info("unsubscribed queue %r from %s, since it is gone", stale.endpoint, topic.arn)
    except SQSError as error:
        logger.warning(
            "cannot sweep subscriptions of queues that are gone, which stay, from topic %s: %s",
            topic.arn,
            error,
        )


def _subscriptions(topic: Topic) -> Iterator[Subscription]:
    token = None
    for _ in range(MOST_PAGES):
        page, token = topic.sns.subscriptions(topic.arn, token)
        yield from page
        if token is None:
            return


def _may_be_stale(subscription: Subscription, start: str) -> bool:
    is_ours = subscription.protocol == "sqs" and subscription.endpoint.startswith(start)
    return is_ours and OWN_NAME.fullmatch(_name(subscription)) is not None


def _is_missing(subscription: Subscription, beside: Queue) -> bool:
    try:
        beside.sqs.queue_url(_name(subscription))
    except QueueDoesNotExistError:
        return True
    return False


def _name(subscription: Subscription) -> str:
    return subscription.endpoint.rpartition(":")[2]


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
