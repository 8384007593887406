"""Messages whose ETA is far away wait in SQS: hidden, or as a copy where SQS would not let them wait longer.

SQS moves a message to the dead-letter queue when it was received too often, and deletes it when it is too
old, even while it is hidden. A copy starts with neither receives nor age. It is sent before the original is
deleted. It also drops receives of workers that held the message in vain, which would count as attempts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.delivery import Delivery, MakeCopy
from celery_sqs_visibility.core.settlements import Direct, Forward, Hide, Hold, Purpose, Why
from celery_sqs_visibility.delivery.receive.content import DecodedMessage
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.eta import (
    LEAD_SECONDS,
    Limits,
    park_seconds,
    parks_until_eta,
    plan_park,
    wasted_receives,
)
from celery_sqs_visibility.policy.options import OptionsOfQueue
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS


class Parking:
    """Decides how a message waits for its ETA. Any thread; makes no request.

    Args:
        redrive: the queues' redrive policies.
        options_of: returns the options of a queue.
        clock: wall time.
        permissions: of the queues that the copies go to.
        held: for how many seconds a message may be held for its ETA; by default for the visibility timeout
            plus `lead`.
        lead: how many seconds before its ETA a parked message comes back.
    """

    def __init__(
        self,
        redrive: RedriveBook,
        options_of: OptionsOfQueue,
        clock: Clock,
        permissions: CopyPermissions,
        *,
        held: int | None = None,
        lead: int = LEAD_SECONDS,
    ) -> None:
        self._redrive = redrive
        self._options_of = options_of
        self._clock = clock
        self._permissions = permissions
        self._held = held
        self._lead = lead

    def parks_until_eta(self, delivery: Delivery, opened: DecodedMessage) -> int:
        """The number of receives that were not attempts: the message was parked, or in another queue.

        Rarely makes a request: only for a message that SQS moved from another queue.
        """
        parks, facts = 0, delivery.facts
        if opened.eta is not None:
            timeout = self._timeout(facts.queue)
            parks = parks_until_eta(opened.eta, facts.first_received, self._clock.wall(), timeout, self._lead)
        if (source := delivery.moved_from) is not None:
            now = self._clock.monotonic()
            parks += self._redrive.receives_in_source(delivery.queue, source, facts.receive_count, now)
        return parks

    def _timeout(self, queue: str) -> int:
        if self._held is not None:
            return self._held - self._lead
        return self._options_of(queue).visibility_timeout

    def waiting(
        self, delivery: Delivery, opened: DecodedMessage, message: ReceivedMessage
    ) -> Hide | Forward | None:
        """How to park the message until its ETA; `None` if Celery gets it now, and holds it until then."""
        if opened.eta is None:
            return None
        queue, wait = delivery.queue, opened.eta - self._clock.wall()
        limits = self._limits(delivery, message, wait)
        plan = plan_park(wait, limits)
        if plan is None:
            return None
        if not plan.renewed:
            return Hide(plan.seconds, Why.PARKED)
        seconds = None
        if limits.may_return:
            seconds = park_seconds(wait, limits.visibility_timeout, self._lead)
        park = Hold(opened.payload) if seconds is None else Hide(seconds, Why.PARKED)
        # A FIFO queue delays no message, so a copy that can't be parked either would come back at once.
        if not self._permissions.may_copy(queue) or (queue.fifo and limits.max_receive_count == 1):
            return park if isinstance(park, Hide) else None
        delay = min(plan.seconds, limits.seconds_to_stay)
        content = message["Body"], delivery.message_attributes
        return _renewal(_copy(delivery, *content, delay, opened.eta), park)

    def renewal(
        self, delivery: Delivery, eta: float, copied: MakeCopy, otherwise: Direct | Hold
    ) -> Forward | None:
        """The settlement for a new ETA, in seconds since the epoch; `None` if it can't wait as a copy.

        `copied` makes the body and attributes of the copy; `otherwise` settles the message if the queue
        refuses it.
        """
        if delivery.queue.fifo or not self._permissions.may_copy(
            delivery.queue
        ):  # in a FIFO queue the copy would lose its place in its group
            return None
        if (content := copied(delivery)) is None:
            return None
        delay = min(
            math.floor(eta - self._clock.wall()) - self._lead, self._redrive.retention(delivery.queue) // 2
        )
        # A message that waits for its key can be hidden instead; one that waits for its rate limit is held.
        why = otherwise.why if isinstance(otherwise, Hide) else Why.RATE
        return _renewal(_copy(delivery, *content, delay, eta), otherwise, why)

    def _limits(self, delivery: Delivery, message: ReceivedMessage, wait: float) -> Limits:
        policy = self._redrive.peek(delivery.queue)
        # While the policy can't be read, assume that there is one.
        unknown = None if self._redrive.knows(delivery.queue) else 2
        timeout = self._timeout(delivery.queue.name)
        receives = delivery.facts.receive_count
        # In a FIFO queue a copy would lose its place in its group.
        wasted = (
            0
            if delivery.queue.fifo
            else wasted_receives(receives, delivery.parkings, wait, timeout, self._lead)
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


def _renewal(copy: OutgoingMessage, otherwise: Direct | Hold, why: Why = Why.PARKED) -> Forward:
    return Forward(Purpose.RENEWAL, (copy,), lambda _error: otherwise, why=why)


def _age(message: ReceivedMessage, now: float) -> float:
    """Seconds since the message was sent; 0 if unknown."""
    sent = int(message.get("Attributes", {}).get("SentTimestamp", 0)) / 1000
    return max(0.0, now - sent) if sent else 0.0


def _copy(
    delivery: Delivery, body: str, attributes: Mapping[str, Any], delay: int, eta: float
) -> OutgoingMessage:
    fifo, facts = delivery.queue.fifo, delivery.facts
    return OutgoingMessage(
        body=body,
        attributes=attributes,
        delay=None if fifo else max(0, min(delay, DELAY_SECONDS)),
        group_id=facts.group,
        # Differs from the original's, but not when the copy is sent again because no answer came.
        deduplication_id=facts.message_id if fifo else None,
        visible_at=eta - LEAD_SECONDS,
    )
