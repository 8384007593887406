"""Messages whose ETA is far away wait in SQS: hidden, or as a copy where SQS would not let them wait longer.

SQS moves a message to the dead-letter queue that was received too often, and deletes one that is too old, be
it hidden or not. A copy has neither receives nor age. It is sent before the original is deleted. Nor has it
the receives of workers that held the message in vain, which would count as attempts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.redrive import REDRIVE_SECONDS, RedriveBook
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.receive.decoder import DecodedMessage
from celery_sqs_visibility.delivery.settlements import Park, Renew
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, RequestRefusedError
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.parking import (
    LEAD_SECONDS,
    Limits,
    hop_for,
    park_for,
    parks_so_far,
    wasted_receives,
)
from celery_sqs_visibility.policy.queue_options import OptionsOfQueue
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS

logger = logging.getLogger(__name__)


class Parking:
    """Decides how a message waits for its ETA, in the receivers' threads; sends copies, in the settler's.

    Args:
        redrive: the queues' redrive policies.
        options_of: of a queue.
        clock: wall time, and monotonic time.
        held: for how many seconds a message may be held for its ETA; `None`: for the visibility timeout, and
            the lead.
        lead: how many seconds before its ETA a parked message comes back.
    """

    def __init__(
        self,
        redrive: RedriveBook,
        options_of: OptionsOfQueue,
        clock: Clock,
        *,
        held: int | None = None,
        lead: int = LEAD_SECONDS,
    ) -> None:
        self._redrive = redrive
        self._options_of = options_of
        self._clock = clock
        self._held = held
        self._lead = lead
        # Queue URL to the monotonic instant at which it refused a copy. Each access is atomic: no lock.
        self._refused: dict[str, float] = {}

    def parks_so_far(self, delivery: Delivery, opened: DecodedMessage) -> int:
        """The number of the message's receives that were parks and not attempts."""
        if opened.eta is None:
            return 0
        facts = delivery.facts
        timeout = self._timeout(facts.queue)
        return parks_so_far(opened.eta, facts.first_received, self._clock.wall(), timeout, self._lead)

    def _timeout(self, queue: str) -> int:
        if self._held is not None:
            return self._held - self._lead
        return self._options_of(queue).visibility_timeout

    def waiting(
        self, delivery: Delivery, opened: DecodedMessage, message: ReceivedMessage
    ) -> Park | Renew | None:
        """How the message waits for its ETA; `None`: Celery gets it now, and holds it until then."""
        if opened.eta is None:
            return None
        queue, wait = delivery.queue, opened.eta - self._clock.wall()
        limits = self._limits(delivery, message, wait)
        hop = hop_for(wait, limits)
        if hop is None:
            return None
        if not hop.renewed:
            return Park(hop.seconds)
        park = park_for(wait, limits.visibility_timeout, self._lead) if limits.may_return else None
        # In a FIFO queue no message can be delayed: where the copy cannot be parked either it comes at once.
        if not self._may_copy(delivery) or (queue.fifo and limits.max_receive_count == 1):
            return None if park is None else Park(park)
        delay = min(hop.seconds, limits.seconds_to_stay)
        return Renew(_copy(delivery, message["Body"], delay, opened.eta), opened.payload, park)

    def renewal(
        self, delivery: Delivery, eta: float, body: Callable[[], str], payload: dict[str, Any]
    ) -> Renew | None:
        """How a message waits for a new ETA, in seconds since the epoch; `None`: it cannot. Any thread.

        `body` makes that of the copy; Celery gets `payload` where the queue refuses the copy.
        """
        if delivery.queue.fifo or not self._may_copy(delivery):  # it would lose its place in its group
            return None
        delay = min(
            math.floor(eta - self._clock.wall()) - self._lead, self._redrive.retention(delivery.queue) // 2
        )
        return Renew(_copy(delivery, body(), delay, eta), payload, None)

    def _may_copy(self, delivery: Delivery) -> bool:
        refused = self._refused.get(delivery.queue.url)
        return refused is None or self._clock.monotonic() - refused > REDRIVE_SECONDS

    def send(self, delivery: Delivery, renew: Renew) -> str | None:
        """Send the copy: its message id, or `None` where the queue refuses it. A settler's thread.

        Raises:
            SQSError: it could not be sent now; try again.
        """
        queue = delivery.queue
        try:
            return queue.sqs.send(queue.url, renew.copy)
        except (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError) as error:
            if queue.url not in self._refused:
                logger.warning(
                    "cannot send to queue %r, so a message whose ETA is far away waits there only as long as "
                    "the queue's redrive policy and retention let it; allow sqs:SendMessage: %s",
                    queue.name,
                    error,
                )
            self._refused[queue.url] = self._clock.monotonic()
            return None

    def _limits(self, delivery: Delivery, message: ReceivedMessage, wait: float) -> Limits:
        policy = self._redrive.peek(delivery.queue)
        # Where the policy cannot be read there may be one.
        unknown = None if self._redrive.knows(delivery.queue) else 2
        timeout = self._timeout(delivery.queue.name)
        receives = delivery.facts.receive_count
        # In a FIFO queue a copy would lose its place in its group.
        wasted = (
            0 if delivery.queue.fifo else wasted_receives(receives, delivery.parks, wait, timeout, self._lead)
        )
        return Limits(
            receive_count=receives,
            max_receive_count=policy.max_receive_count if policy else unknown,
            age=_age(message, self._clock.wall()),
            retention=self._redrive.retention(delivery.queue),
            visibility_timeout=timeout,
            wasted_receives=wasted,
            lead=self._lead,
        )


def _age(message: ReceivedMessage, now: float) -> float:
    """Seconds since it was sent; 0 if that is unknown."""
    sent = int(message.get("Attributes", {}).get("SentTimestamp", 0)) / 1000
    return max(0.0, now - sent) if sent else 0.0


def _copy(delivery: Delivery, body: str, delay: int, eta: float) -> OutgoingMessage:
    fifo, facts = delivery.queue.fifo, delivery.facts
    return OutgoingMessage(
        body=body,
        attributes=delivery.message_attributes,
        delay=None if fifo else max(0, min(delay, DELAY_SECONDS)),
        group_id=facts.group,
        # Not the original's; but the same if the copy is sent again because no answer came.
        deduplication_id=facts.message_id if fifo else None,
        visible_at=eta - LEAD_SECONDS,
    )
