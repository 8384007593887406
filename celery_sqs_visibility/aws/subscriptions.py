"""Subscribes queues to topics, and unsubscribes queues that are gone."""

from __future__ import annotations

import logging
import random
import re
import threading
from typing import TYPE_CHECKING, Final

from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.policy import arns
from celery_sqs_visibility.policy.queue_policy import allow_topics

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
        start = arns.beside(beside.arn(), prefix)
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
