"""Fanout exchanges: SNS topics to which queues are subscribed, as in kombu's SQS transport.

A message is published without base64, and arrives unchanged by raw message delivery (kombu/transport/SQS:
`Channel._put_fanout`, `SNS.publish`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.port import Location, OutgoingMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.aws.queues import Queue, Queues
from celery_sqs_visibility.aws.sns import SNS
from celery_sqs_visibility.aws.topics import Topic, Topics, subscribe, sweep
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    MessageTooLargeError,
    RequestRefusedError,
    SQSError,
)
from celery_sqs_visibility.policy.message_limits import DATA_TYPE, message_bytes
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import PredefinedTopic
from celery_sqs_visibility.policy.queue_names import sqs_name
from celery_sqs_visibility.policy.quotas import MESSAGE_ATTRIBUTES, MESSAGE_BYTES, TOPIC_MESSAGE_BYTES
from celery_sqs_visibility.transport.encoding import encode_message

logger = logging.getLogger(__name__)

#: SNS's error code for a topic that does not exist.
NO_TOPIC: Final = "NotFound"

PERMISSIONS: Final = "allow sqs:GetQueueAttributes, sqs:SetQueueAttributes and sns:Subscribe"


class Fanout:
    """The fanout exchanges of one broker in one process. Any thread."""

    def __init__(self, topics: Topics, queues: Queues) -> None:
        self._topics = topics
        self._queues = queues
        self._lock = ProcessLock()  # guards _subscribed
        self._subscribed: dict[tuple[str, str | None], tuple[Topic, str | None]] = {}

    def publish(self, exchange: str, message: dict[str, Any]) -> None:
        """Publish kombu's message to all subscribed queues.

        Raises:
            SQSError: it could not be published. The message says why.
        """
        topic = self._topics.find(exchange)
        encoded = encode_message(message, topic, base64_encoded=False)
        outgoing = replace(encoded, attributes=_typed(encoded.attributes))
        if len(outgoing.attributes) > MESSAGE_ATTRIBUTES:
            raise RequestRefusedError(
                f"the message has {len(outgoing.attributes)} attributes, and SNS drops one with more than "
                f"{MESSAGE_ATTRIBUTES} on its way to queues: put them into the task's arguments"
            )
        try:
            topic.sns.publish(topic.arn, outgoing)
        except RequestRefusedError as error:
            if error.code == NO_TOPIC:
                self._topics.forget(exchange)
            raise _refused(topic, outgoing, error) from error

    def subscribe(self, queue: Queue, exchanges: Iterable[str]) -> None:
        """Subscribe the queue to the exchanges. Makes requests the first time.

        Call it with all exchanges of the queue, because the queue's policy is then written once for all of
        them.

        Raises:
            SQSError: it can't be subscribed. If the topic is predefined and a permission is missing, a
                warning is logged instead: an administrator may have subscribed the queue.
        """
        missing = [each for each in exchanges if not self.is_subscribed(queue.name, each)]
        topics = {exchange: self._topics.find(exchange) for exchange in missing}
        with self._lock:
            before = [topic.arn for (name, _), (topic, _) in self._subscribed.items() if name == queue.name]
        arns = [*before, *(topic.arn for topic in topics.values())]
        for exchange, topic in topics.items():
            self._subscribe(queue, exchange, topic, arns)

    def _subscribe(self, queue: Queue, exchange: str, topic: Topic, arns: list[str]) -> None:
        subscription = self._subscription(queue, topic, arns)
        with self._lock:
            self._subscribed[queue.name, exchange] = topic, subscription
        if subscription is not None:
            logger.info("subscribed queue %r to topic %s", queue.name, topic.arn)
        if not topic.predefined:
            start_thread(sweep, f"sqs-sweep-{exchange}", topic, queue, self._queues.prefix)

    def is_subscribed(self, queue_name: str, exchange: str | None) -> bool:
        """Returns whether this process subscribed the queue to the exchange, or for "" to any. No request.

        A retry that a broadcast task publishes to its own queue also counts as a broadcast: others have its
        task id.
        """
        if exchange == "":
            return any(name == queue_name for name, _ in list(self._subscribed))
        return (queue_name, exchange) in self._subscribed

    def unsubscribe(self, queue_name: str) -> None:
        """Unsubscribe a queue that is about to be deleted. Errors are logged."""
        with self._lock:
            keys = [key for key in self._subscribed if key[0] == queue_name]
            ended = [self._subscribed.pop(key) for key in keys]
        for topic, subscription in ended:
            if subscription is not None:
                try:
                    topic.sns.unsubscribe(subscription)
                except SQSError as error:
                    logger.warning(
                        "cannot unsubscribe queue %r from topic %s, so its subscription stays: %s",
                        queue_name,
                        topic.arn,
                        error,
                    )

    def _subscription(self, queue: Queue, topic: Topic, arns: list[str]) -> str | None:
        try:
            return subscribe(queue, topic, arns)
        except AccessDeniedError as error:
            if not topic.predefined:
                sentence = (
                    f"queue {queue.name!r} cannot be subscribed to topic {topic.arn}: {PERMISSIONS}. {error}"
                )
                raise reword(error, sentence) from error
            logger.warning(
                "cannot make sure that queue %r is subscribed to topic %s: subscribe it yourself, with raw "
                "message delivery, or %s: %s",
                queue.name,
                topic.arn,
                PERMISSIONS,
                error,
            )
            return None
        except RequestRefusedError as error:
            sentence = f"queue {queue.name!r} cannot be subscribed to topic {topic.arn}: {error}"
            raise reword(error, sentence) from error


def topics_of(sqs: ClientSettings, options: Options) -> Topics:
    """The directory of topics, with the settings of SQS. Makes no request."""
    settings = replace(sqs, endpoint_url=_endpoint_of_sns(sqs))

    def sns_for(predefined: PredefinedTopic) -> SNS:
        return SNS(settings.with_own(predefined))

    name_of = partial(sqs_name, prefix=options.queue_name_prefix)
    return Topics(SNS(settings), name_of, options.predefined_exchanges, sns_for)


def _endpoint_of_sns(sqs: ClientSettings) -> str | None:
    """The endpoint of SNS: SQS's for an emulator; otherwise `None`, which means botocore's default."""
    url = sqs.endpoint_url
    return None if url is None or Location(sqs.region or "", url).is_amazons else url


def _typed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Message attributes in the format that SNS and SQS share. For fanout, kombu allows plain values."""
    return {
        name: value if isinstance(value, Mapping) else {"DataType": DATA_TYPE, "StringValue": str(value)}
        for name, value in attributes.items()
    }


def _refused(topic: Topic, message: OutgoingMessage, error: RequestRefusedError) -> SQSError:
    if error.code == NO_TOPIC:
        sentence = (
            f"the topic {topic.arn} of exchange {topic.exchange!r} was deleted, and its subscriptions with "
            f"it: restart the workers, which subscribe anew. {error}"
        )
        return reword(error, sentence)
    size = message_bytes(message.body, message.attributes)
    if size <= TOPIC_MESSAGE_BYTES or "Message too long" not in str(error):
        return reword(error, str(error))
    return MessageTooLargeError(
        f"the message for exchange {topic.exchange!r} has {size:,} bytes with its attributes, and its topic "
        f"takes fewer: {TOPIC_MESSAGE_BYTES:,} unless its attribute MaximumMessageSize allows up to "
        f"{MESSAGE_BYTES:,}. Raise that, or put the data into S3 and send its key. payload_store is not for "
        f"broadcasts, since no worker knows when all others have read a payload. {error}",
        code=error.code,
        action=error.action,
    )
