"""From what a poll brought to deliveries: known to the ledger, and opened."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.hold.redelivery import Past, RedeliveryIndex
from celery_sqs_visibility.delivery.model import DeadLetter, Delivery, Hide, Holder, Lapse, Settlement
from celery_sqs_visibility.events import Facts, Received, Unreadable, emit
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retry_delays import DelayRule, whole_seconds

logger = logging.getLogger(__name__)

#: An answer to a long poll may have been under way for a while; a delivery's visibility is counted from
#: that many seconds before it arrived, or from the call if that was later.
LONGEST_TRANSIT = 1.0

#: Seconds that a poll may last, its answer's delay included.
LONGEST_POLL = WAIT_TIME_SECONDS + 5.0

#: Characters that SQS takes in no text (API_SendMessage: those of XML 1.0), and no terminal likes.
ILLEGIBLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufffe\\uffff]")

#: Characters of a reason or a name that are told; SQS counts a dead letter's attributes as part of it.
LONGEST_TEXT = 500


class UnreadableError(Exception):
    """No task can be made of a message; the text says why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A message's content.

    Attributes:
        payload: what kombu makes its `Message` of.
        task: the task's name and
        task_id: its id, as far as the headers tell.
        eta: seconds since the epoch, or `None`.
    """

    payload: dict[str, Any]
    task: str | None = None
    task_id: str | None = None
    eta: float | None = None


#: Opens a message of a queue; raises `UnreadableError`.
Open = Callable[[Queue, ReceivedMessage], Opened]


class Decoder:
    """Makes deliveries of messages. Called from the receivers' threads; it keeps nothing.

    Args:
        open_message: what a message says.
        visibility_timeout: what the receives asked for, in seconds.
        on_error: how long an unreadable message stays hidden.
        clock: wall time.
        holder: what the deliveries belong to.
        redeliveries: remembers what was rejected, so that each message is told of once.
    """

    def __init__(
        self,
        open_message: Open,
        visibility_timeout: int,
        on_error: DelayRule | None,
        clock: Clock,
        holder: Holder,
        redeliveries: RedeliveryIndex,
    ) -> None:
        self._open = open_message
        self._visibility_timeout = visibility_timeout
        self._on_error = on_error
        self._clock = clock
        self._holder = holder
        self._redeliveries = redeliveries

    def take_in(
        self, queue: Queue, messages: Sequence[ReceivedMessage], called: float, returned: float
    ) -> list[tuple[Delivery, Opened | UnreadableError, ReceivedMessage]]:
        """The deliveries of one poll, in order, with what is in them.

        Args:
            queue: where from.
            messages: as received.
            called: the monotonic instant before the call.
            returned: the one after it.
        """
        transit = min(LONGEST_TRANSIT, self._visibility_timeout / 10)
        # Not from later than a poll may last: where this process was stopped meanwhile, the answer is older.
        since = max(called, min(returned - transit, called + LONGEST_POLL))
        now = round(self._clock.wall(), 3)  # milliseconds, as SQS's own instants
        taken: list[tuple[Delivery, Opened | UnreadableError, ReceivedMessage]] = []
        for message in messages:
            try:
                content = self._content(queue, message)
                facts = _facts(queue, message, content, now)
                handle = message["ReceiptHandle"]
            except Exception:
                # It is not lost: nobody settles it, so it comes back by itself.
                logger.exception("taking in a message stumbled", extra={"queue": queue.name})
                continue
            deadline = since + self._visibility_timeout
            # SQS counts its 12 hours from the request, however long that waited for a message.
            delivery = Delivery(
                queue, handle, facts, called, deadline, self._holder, message.get("MessageAttributes", {})
            )
            taken.append((delivery, content, message))
            emit(Received(facts))
        return taken

    def _content(self, queue: Queue, message: ReceivedMessage) -> Opened | UnreadableError:
        try:
            return self._open(queue, message)
        except UnreadableError as error:
            return error
        except Exception as error:
            if not self._redeliveries.remembers(Past.REJECTED, queue, message.get("MessageId", "")):
                logger.exception("opening a message stumbled", extra={"queue": queue.name})
            return UnreadableError(f"it could not be opened: {error!r}")

    def refuse(
        self,
        delivery: Delivery,
        reason: str,
        body: str,
        *,
        wait: bool = False,
        otherwise: Settlement | None = None,
    ) -> None:
        """No task can be made of it: a dead letter, or else what is said, or (or if to `wait`) hidden."""
        reason = legible(reason)
        if self._redeliveries.remember(Past.REJECTED, delivery.queue, delivery.facts.message_id):
            emit(Unreadable(delivery.facts, reason))
        hidden = self.as_after_an_error(delivery)
        delivery.settle(hidden if wait else DeadLetter(reason, body, otherwise=otherwise or hidden))

    def as_after_an_error(self, delivery: Delivery) -> Hide | Lapse:
        """Hidden for the transport's error visibility timeout, or the rest of the visibility timeout."""
        retries = delivery.facts.receive_count - 1
        try:
            delay = self._on_error.delay(retries, UnreadableError()) if self._on_error else None
        except Exception:
            logger.exception("error_visibility_timeout failed; the message comes back at its own time")
            delay = None
        return Lapse() if delay is None else Hide(whole_seconds(delay))


def legible(text: str) -> str:
    """Text of a message's own making as it may be logged, and sent as an attribute of a dead letter."""
    shown = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
    return ILLEGIBLE.sub("\N{REPLACEMENT CHARACTER}", shown)


def _facts(
    queue: Queue, message: ReceivedMessage, content: Opened | UnreadableError, received: float
) -> Facts:
    attributes = message.get("Attributes", {})
    return Facts(
        queue=queue.name,
        message_id=message["MessageId"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 1)),
        first_received=int(attributes.get("ApproximateFirstReceiveTimestamp", 0)) / 1000,
        task=content.task if isinstance(content, Opened) else None,
        task_id=content.task_id if isinstance(content, Opened) else None,
        group=attributes.get("MessageGroupId"),
        received=received,
    )
