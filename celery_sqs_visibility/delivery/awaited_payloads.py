"""Messages that wait for their payload from S3: they are held and extended meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from celery_sqs_visibility.aws.object_store import ObjectStore
from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.batch_threads import BatchThreads
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.payloads.fetches import Fetch, Fetches
from celery_sqs_visibility.delivery.receive.decoder import Opened, ReadContent, ReadLater
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer


class AwaitedPayloads:
    """Has payloads fetched for a holder's messages, which take no capacity while S3 keeps them waiting.

    Args:
        objects: the bucket.
        decode: makes the content of a message with its payload in its body.
        holder: what the messages belong to.
        fetched: takes the content of a message that is held, in a thread that fetches.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        objects: ObjectStore,
        decode: Callable[[Queue, ReceivedMessage], ReadContent],
        holder: DeliveryHolder,
        fetched: Callable[[Delivery, ReadContent, ReceivedMessage], None],
        clock: Clock,
    ) -> None:
        self._holder = holder
        self._take = fetched
        self._fetches = Fetches[Opened | ReadLater](
            objects, decode, _is_held, self._has_place, self._wait, self._fetched, clock
        )

    @property
    def batch_threads(self) -> BatchThreads[Fetch[Opened | ReadLater]]:
        """The threads that fetch, to be started."""
        return self._fetches.batch_threads

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Supervised`: nothing is replaced here, and no message keeps its place in vain."""
        self._fetches.notice_silence(now)

    def submit(self, delivery: Delivery, pointer: PayloadPointer, message: ReceivedMessage) -> None:
        """Fetch the payload of a message that is held. Any thread; it does not block."""
        self._fetches.submit(delivery, pointer, message)

    def _has_place(self, delivery: Delivery) -> bool:
        return self._holder.set_aside.has_place(delivery.current)

    def _wait(self, delivery: Delivery) -> None:
        """S3 does not give a payload for now: other messages are received in its message's place."""
        if delivery.current.holder is self._holder:
            self._holder.set_aside.add(delivery.current)

    def _fetched(self, delivery: Delivery, content: ReadContent, message: ReceivedMessage) -> None:
        self._holder.set_aside.remove(delivery.current)
        self._take(delivery, content, message)


def _is_held(delivery: Delivery) -> bool:
    """Whether its message is held still, under its newest handle and by whatever consumer."""
    return delivery.current.held
