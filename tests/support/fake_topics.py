"""SNS in memory, before a `FakeSQS`."""

from __future__ import annotations

from typing import Any

from celery_sqs_visibility.aws.fake import ACCOUNT, REGION
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.sns import Subscription
from celery_sqs_visibility.errors import QueueDoesNotExistError, RequestRefusedError, SQSError

PAGE = 2


class FakeSNS:
    """As `aws.sns.SNS`, for queues of that SQS, as they allow; `calls` and `failures` are by API action."""

    def __init__(self, sqs: Any) -> None:
        self.sqs = sqs
        self.topics: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self.subscribed: dict[str, Subscription] = {}
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, SQSError] = {}

    def create_topic(self, name, attributes, tags):
        self._called("CreateTopic", (name, attributes, tags))
        arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"
        of_it = self.topics.setdefault(arn, (dict(attributes), dict(tags)))
        if tags and tags != of_it[1]:
            raise RequestRefusedError("Topic already exists with different tags", code="InvalidParameter")
        return arn

    def publish(self, topic_arn, message: OutgoingMessage):
        self._called("Publish", (topic_arn, message))
        if topic_arn not in self.topics:
            raise RequestRefusedError("Topic does not exist", code="NotFound")
        for arn, subscription in self.subscribed.items():
            queue = subscription.endpoint.rpartition(":")[2]
            if arn.startswith(topic_arn):
                try:
                    url = self.sqs.queue_url(queue)
                except QueueDoesNotExistError:
                    continue
                assert topic_arn in self.sqs.queue_attributes(url, ["Policy"])["Policy"]
                of_fifo = (message.group_id, message.deduplication_id) if queue.endswith(".fifo") else ()
                self.sqs.send(url, OutgoingMessage(message.body, message.attributes, None, *of_fifo))
        return "id"

    def subscribe(self, topic_arn, queue_arn):
        self._called("Subscribe", (topic_arn, queue_arn))
        arn = f"{topic_arn}:{queue_arn.rpartition(':')[2]}"
        self.subscribed[arn] = Subscription(arn, "sqs", queue_arn)
        return arn

    def subscriptions(self, topic_arn, token=None):
        self._called("ListSubscriptionsByTopic", topic_arn)
        found = [each for arn, each in self.subscribed.items() if arn.startswith(topic_arn)]
        start = int(token or 0)
        end = start + PAGE
        return found[start:end], str(end) if end < len(found) else None

    def unsubscribe(self, subscription_arn):
        self._called("Unsubscribe", subscription_arn)
        self.subscribed.pop(subscription_arn, None)

    def actions(self):
        return [action for action, _ in self.calls]

    def _called(self, action, arguments):
        self.calls.append((action, arguments))
        if action in self.failures:
            raise self.failures[action]
