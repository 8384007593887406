"""Received messages on their way to Celery: decoded, matched with held ones, then parked or buffered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.copies import DeletesRefusedError
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.giving_back import GivingBack, Phase
from celery_sqs_visibility.core.held import Arrival
from celery_sqs_visibility.core.settlements import Delete, Forward, Hide, Lapse, Purpose, Settlement
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.receive.buffer import BufferedMessage
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, Records, loggable
from celery_sqs_visibility.delivery.receive.decoder import Content, Decoder, ReadContent, ReadLater
from celery_sqs_visibility.delivery.receive.receiver import Receivers
from celery_sqs_visibility.errors import SQSError, UnreadableError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer

logger = logging.getLogger(__name__)

UNEXPECTED: Final = "unexpected error with a message of %r; it comes back at its own time"
NOT_HANDED: Final = "message could not be handed to Celery (%s)"

#: Hands a buffered message to Celery: `BufferedMessage.dispatch`.
Dispatch = Callable[[BufferedMessage, bool], None]

#: Starts to fetch the payload of a message; `Arrivals.fetched` is called with it.
Fetch = Callable[[Delivery, PayloadPointer, ReceivedMessage], None]


class Arrivals:
    """Sorts received messages: some go to Celery, others are settled at once.

    Args:
        decoder: makes deliveries of messages.
        holder: of the deliveries.
        capacity: its `handed` counts the messages passed to Celery.
        receivers: have the callbacks of the queues.
        give_back: settles messages of queues without a callback.
        state: of the consumer; Celery gets messages only while it is consuming.
        fetch: starts to fetch a payload; `None` if no payloads are in S3.
        turn_given: called when a message of that queue goes to Celery, if queues take turns.
    """

    def __init__(
        self,
        decoder: Decoder,
        holder: DeliveryHolder,
        capacity: Capacity,
        receivers: Receivers,
        give_back: Callable[[Delivery], None],
        state: GivingBack,
        fetch: Fetch | None = None,
        turn_given: Callable[[str], None] | None = None,
    ) -> None:
        self._decoder = decoder
        self._holder = holder
        self._capacity = capacity
        self._receivers = receivers
        self._give_back = give_back
        self._fetch = fetch
        self._turn_given = turn_given
        self._state = state

    def decode(
        self, queue: Queue, messages: Sequence[ReceivedMessage], called: float, returned: float
    ) -> list[BufferedMessage]:
        """Hold the messages of a poll, and return those for Celery. A thread that polls.

        `called` and `returned` are the instants at which the poll's request began and ended.
        """
        decoded = self._decoder.decode(queue, messages, called, returned)
        received = self._holder.receive([delivery for delivery, _, _ in decoded])
        dispatch = self._dispatch(queue)
        buffered: list[BufferedMessage] = []
        for (arrival, delivery), (newer, content, message) in zip(received, decoded, strict=True):
            try:
                if arrival is not Arrival.NEW:
                    self._notice_return(arrival, delivery, content)
                elif (one := self._sort(delivery, content, message, dispatch)) is not None:
                    buffered.append(one)
            except Exception:  # noqa: BLE001 - it is logged
                newer.settle(Lapse())  # no effect if it only renewed a held delivery
                log_safely(logger.exception, UNEXPECTED, queue.name)
        return buffered

    def _notice_return(self, arrival: Arrival, delivery: Delivery, content: Content) -> None:
        """Note a newer receipt of a message that is held or finished here: it is not run."""
        if isinstance(content, DecodedMessage):
            self._count_parks(delivery, content)
        self._holder.notice_return(delivery, arrival)

    def _count_parks(self, delivery: Delivery, content: DecodedMessage) -> None:
        """Note how many receives of the message so far were not attempts."""
        if content.eta is not None or delivery.moved_from:
            parks = self._holder.parking.parks_until_eta(delivery, content)
            delivery.parkings = max(delivery.parkings, parks)

    def fetched(
        self, delivery: Delivery, content: ReadContent, message: ReceivedMessage
    ) -> list[BufferedMessage]:
        """Take in a held message whose payload has arrived from S3. A thread that fetches.

        Returns the message for Celery; empty if it was settled.
        """
        delivery.attended = False
        content = with_payload(delivery, content, message)
        if isinstance(content, DecodedMessage):
            self._count_parks(delivery, content)
        one = self._sort_new(delivery, content, message, self._dispatch(delivery.queue))
        return [] if one is None else [one]

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> list[BufferedMessage] | None:
        """Let Celery hold a message whose queue refuses the copy. A thread that sends copies.

        Returns:
            The message for Celery, or an empty list if its queue is no longer consumed. `None` if the
            delivery is no longer held.
        """
        if not self._holder.disclaim(delivery):
            return None
        dispatch = self._dispatch(delivery.queue)
        if dispatch is not None:
            return [BufferedMessage(delivery, payload, dispatch)]
        self._give_back(delivery)
        return []

    def _sort(
        self,
        delivery: Delivery,
        content: Content,
        message: ReceivedMessage,
        dispatch: Dispatch | None,
    ) -> BufferedMessage | None:
        """Return the message for Celery; `None` if it was settled, or its payload is being fetched."""
        if isinstance(content, DecodedMessage):
            if content.eta is None and not delivery.moved_from and dispatch is not None:  # the usual case
                return BufferedMessage(delivery, content.payload, dispatch)
            self._count_parks(delivery, content)
        if not isinstance(content, PayloadPointer):
            return self._sort_new(delivery, content, message, dispatch)
        if dispatch is None or self._fetch is None:
            self._give_back(delivery)
        else:
            delivery.attended = True
            self._fetch(delivery, content, message)
        return None

    def _sort_new(
        self,
        delivery: Delivery,
        content: ReadContent,
        message: ReceivedMessage,
        dispatch: Dispatch | None,
    ) -> BufferedMessage | None:
        parking = self._holder.parking
        if isinstance(content, UnreadableError) and delivery.queue.name in self._decoder.others:
            content = self._decoder.content(delivery.queue, message)  # without its payload in S3
        if isinstance(content, UnreadableError):
            refuse(delivery, content, message["Body"])
            return None
        if isinstance(content, ReadLater):
            delivery.come_back(content.error)
            return None
        unrun: Settlement | None
        if isinstance(content, DecodedMessage):
            unrun = parking.waiting(delivery, content, message)
        elif isinstance(content, Records):
            unrun = split(delivery, content)
        else:
            unrun = content
        # During a shutdown no copies are sent.
        if unrun is not None and (dispatch is not None or isinstance(unrun, (Delete, Hide))):
            delivery.settle(unrun)
        elif dispatch is None or not isinstance(content, DecodedMessage):
            self._give_back(delivery)
        else:
            return BufferedMessage(delivery, content.payload, dispatch)
        return None

    def _dispatch(self, queue: Queue) -> Dispatch | None:
        """The function that hands the queue's messages to Celery; `None` if Celery gets no more.

        The main thread calls it. If Celery raises, it either raises, and the message stays held, or logs the
        error, and the message comes back.
        """
        on_message = self._receivers.on_message(queue.name)
        if on_message is None:
            return None
        lapsed, capacity = self._holder.lapsed, self._capacity
        turn_given, state = self._turn_given, self._state

        def dispatch(buffered: BufferedMessage, raising: bool) -> None:  # noqa: FBT001 - see BufferedMessage
            delivery = buffered.delivery
            try:
                if state.phase is not Phase.CONSUMING or lapsed(delivery):
                    return  # it is given back, like all messages that are held and not running
                if turn_given is not None:
                    turn_given(queue.name)
                capacity.handed += 1
                on_message(buffered.payload, delivery)
            except Exception:
                if raising:
                    raise
                delivery.attended = False
                delivery.settle(delivery.after_an_error())
                fields = Fields(message_id=delivery.facts.message_id)
                log_safely(logger.exception, NOT_HANDED, fields, extra={"sqs": fields})

        return dispatch


def split(delivery: Delivery, records: Records) -> Forward:
    """The settlement that sends each record as a message of its own, then deletes the event."""

    def otherwise(error: SQSError) -> Settlement:
        if isinstance(error, DeletesRefusedError):
            return delivery.after_an_error()
        reason = (
            f"its {len(records.messages)} records cannot be sent to queue {delivery.queue.name!r} "
            f"as a message each: {error}"
        )
        return delivery.holder.rejection.refusal(delivery, reason, records.body)

    return Forward(Purpose.RECORDS, records.messages, otherwise, records.remainder)


def with_payload(delivery: Delivery, content: ReadContent, message: ReceivedMessage) -> ReadContent:
    """Note the task in the delivery. Returns the content; records keep the pointer for a dead letter."""
    if isinstance(content, DecodedMessage):
        task, task_id = loggable(content.task), loggable(content.task_id)
        delivery.facts = replace(delivery.facts, task=task, task_id=task_id)
    elif isinstance(content, Records):
        return content._replace(body=message["Body"])
    return content


def refuse(delivery: Delivery, error: UnreadableError, body: str) -> None:
    """Refuse a message that could not be decoded. If a bug is the cause, log it once. Any thread."""
    first = delivery.refuse(str(error), body)
    if first and (bug := error.__cause__) is not None:
        fields = Fields(message_id=delivery.facts.message_id)
        sentence = "a message of queue %r cannot be decoded: %s (%s)"
        logger.error(sentence, delivery.queue.name, error, fields, extra={"sqs": fields}, exc_info=bug)
