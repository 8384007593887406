"""Decoder: turns received messages into deliveries, with their content or why it can't be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.delivery import Consumer, Delivery, Holder
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, Records, loggable
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.events import DeliveryFacts, Received, emit, log_safely
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer, pointer_in
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retries import attempts_made

logger = logging.getLogger(__name__)

#: The time that an answer may take to arrive. A visibility timeout is counted from this long before the
#: arrival, or from the call if that was later.
MAX_TRANSIT_SECONDS = 1.0

#: The longest that a poll lasts, including the delay of its answer.
MAX_POLL_SECONDS = WAIT_TIME_SECONDS + 5.0

#: The system attribute of a message that SQS has moved to its dead-letter queue.
SOURCE_ARN = "DeadLetterQueueSourceArn"

#: The attributes of a message that has none.
NONE: Final[Mapping[str, Any]] = {}

NOT_TAKEN = "a message could not be decoded; it comes back"


@dataclass(frozen=True, slots=True)
class ReadLater:
    """A message that can't be read for now, for a reason outside of it; `error` says which."""

    error: Exception


#: What a message contains: a task, nothing to run, or several records.
Opened = DecodedMessage | Delete | Records

#: What a message contains, or why it can't be read.
ReadContent = Opened | UnreadableError | ReadLater

#: What a received message contains, or where its payload is in S3.
Content = ReadContent | PayloadPointer

#: Returns when this process was last seen running, if it was stopped between two instants; else the later.
StoppedAt = Callable[[float, float], float]

#: Decodes a message of a queue; raises `UnreadableError`.
DecodeMessage = Callable[[Queue, ReceivedMessage], Opened]


class Decoder:
    """Turns messages into deliveries. Called by threads that poll; has no state.

    Args:
        open_message: decodes one message.
        holder: of the deliveries. Its options say which objects in S3 a message may point to, and with which
            `visibility_timeout` messages are received.
        clock: wall time.
        consumer: the consumer that receives them, if any.
        stopped_at: finds out whether this process was stopped; by default it is assumed not to be.
        others: decode the messages of queues whose consumers are not Celery's, by queue name.
    """

    def __init__(
        self,
        open_message: DecodeMessage,
        holder: Holder,
        clock: Clock,
        consumer: Consumer | None = None,
        stopped_at: StoppedAt = lambda _since, now: now,
        others: Mapping[str, DecodeMessage] = NONE,
    ) -> None:
        self._open = open_message
        self.others = others
        self._options_of = holder.options.for_queue
        self._readable = holder.options.readable_payloads
        self._clock = clock
        self._holder = holder
        self._consumer = consumer
        self._stopped_at = stopped_at

    def decode(
        self, queue: Queue, messages: Sequence[ReceivedMessage], called: float, returned: float
    ) -> list[tuple[Delivery, Content, ReceivedMessage]]:
        """Make the deliveries of one poll, in order, each with its content and its message.

        `called` and `returned` are the monotonic instants before and after the call. A message of which no
        delivery can be made is logged and left out: nobody settles it, so it comes back.
        """
        deadline = self._deadline(queue, called, returned)
        # SQS counts its 12 hours from the start of the request, even if that waited for a message.
        horizon = called + VISIBILITY_HORIZON_SECONDS
        now = round(self._clock.wall(), 3)  # milliseconds, as SQS's own instants
        taken: list[tuple[Delivery, Content, ReceivedMessage]] = []
        for message in messages:
            try:
                custom = message.get("MessageAttributes", NONE)
                pointer = self._pointer(message["Body"], custom) if custom else None
                content = pointer or self.content(queue, message)
                attributes = message.get("Attributes", NONE)
                delivery = Delivery(
                    queue,
                    message["ReceiptHandle"],
                    _facts(queue, message["MessageId"], attributes, content, now),
                    horizon,
                    deadline,
                    self._holder,
                    self._consumer,
                    custom,
                    attributes.get(SOURCE_ARN),
                )
                if custom and isinstance(content, PayloadPointer):
                    delivery.pointer = content
                taken.append((delivery, content, message))
            except Exception:  # noqa: BLE001 - it is logged
                log_safely(logger.exception, NOT_TAKEN, extra={"queue": queue.name})
        if Received.is_wanted():
            hidden_for = self._options_of(queue.name).visibility_timeout
            for delivery, _, _ in taken:
                emit(Received(delivery.facts, hidden_for))
        return taken

    def _deadline(self, queue: Queue, called: float, returned: float) -> float:
        timeout = self._options_of(queue.name).visibility_timeout
        # If this process was stopped meanwhile, the answer may have waited for it to go on.
        arrived = min(self._stopped_at(called, returned), called + MAX_POLL_SECONDS)
        transit = min(MAX_TRANSIT_SECONDS, timeout / 10)
        return max(called, min(returned, arrived) - transit) + timeout

    def _pointer(
        self, body: str, custom: Mapping[str, Any]
    ) -> PayloadPointer | UnreadableError | ReadLater | None:
        try:
            return pointer_in(body, custom, self._readable)
        except Exception as error:  # noqa: BLE001 - it is classified
            return _why_not(error)

    def content(self, queue: Queue, message: ReceivedMessage) -> ReadContent:
        """Return the content of a message whose body is its payload. Never raises."""
        try:
            return self.others.get(queue.name, self._open)(queue, message)
        except Exception as error:  # noqa: BLE001 - it is classified
            return _why_not(error)


def _why_not(error: Exception) -> UnreadableError | ReadLater:
    """Why a message can't be read. A bug is logged when the message is refused."""
    if passes(error):
        return ReadLater(error)
    if isinstance(error, UnreadableError):
        return error
    unreadable = UnreadableError(f"it could not be decoded: {error!r}")
    unreadable.__cause__ = error
    return unreadable


def _facts(
    queue: Queue, message_id: str, attributes: Mapping[str, str], content: Content, received: float
) -> DeliveryFacts:
    receives = int(attributes.get("ApproximateReceiveCount", 1))
    attempt = None
    if isinstance(content, DecodedMessage):
        task, task_id = loggable(content.task), loggable(content.task_id)
        if content.eta is None and SOURCE_ARN not in attributes:  # otherwise some receives were not attempts
            attempt = attempts_made(receives, 0, content.retries) + 1
    else:
        task = task_id = None
    return DeliveryFacts(
        queue.name,
        message_id,
        receives,
        int(attributes.get("ApproximateFirstReceiveTimestamp", 0)) / 1000,
        task,
        task_id,
        attributes.get("MessageGroupId"),
        received,
        attempt,
        int(attributes.get("SentTimestamp", 0)) / 1000,
    )
