"""The port to SNS: the requests that fanout exchanges make. `boto_topics.BotoSNS` is it over boto3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_sqs_visibility.aws.port import OutgoingMessage


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription of a topic; a queue's has the protocol "sqs", and the queue's ARN for endpoint."""

    arn: str
    protocol: str
    endpoint: str


class SNS(Protocol):
    """The API actions that we use. Any thread; every method raises an `SQSError` and nothing else."""

    def create_topic(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """CreateTopic: returns the ARN, of the existing topic if there is one with equal parameters."""
        ...

    def publish(self, topic_arn: str, message: OutgoingMessage) -> str:
        """Publish: returns the message id. SNS has no delay; its group id counts in FIFO topics only."""
        ...

    def subscribe(self, topic_arn: str, queue_arn: str) -> str:
        """Subscribe a queue, with raw message delivery: returns the ARN, of an equal subscription if any."""
        ...

    def subscriptions(
        self, topic_arn: str, token: str | None = None
    ) -> tuple[list[Subscription], str | None]:
        """ListSubscriptionsByTopic: a page of up to a hundred, and the token of the next page."""
        ...

    def unsubscribe(self, subscription_arn: str) -> None:
        """Unsubscribe; no error where there is no such subscription."""
        ...
