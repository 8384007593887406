"""The narrow port to SQS: everything the package asks of it, in one protocol.

`aws.boto.BotoSQS` is the real one, `aws.memory.FakeSQS` the fake; one conformance suite runs on both.
Every method raises a class of `aws.errors` and nothing else. All are safe to call from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_sqs_visibility.errors import SQSError


class ReceivedMessage(TypedDict, total=False):
    """One message as ReceiveMessage answers it (API_Message); the system attributes are strings."""

    MessageId: str
    ReceiptHandle: str
    Body: str
    MD5OfBody: str
    Attributes: dict[str, str]
    MessageAttributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """What every ReceiveMessage of a queue asks for.

    Attributes:
        visibility_timeout: seconds; `None` leaves it to the queue.
        system_attributes: names for MessageSystemAttributeNames.
        message_attributes: names for MessageAttributeNames.
        attempt_id: ReceiveRequestAttemptId, FIFO queues only. A receive whose answer was lost brings the same
            messages when it is tried again with the same id within five minutes.
    """

    visibility_timeout: int | None = None
    system_attributes: tuple[str, ...] = ()
    message_attributes: tuple[str, ...] = ()
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message to send.

    Attributes:
        body: the text.
        attributes: MessageAttributes in SQS's own shape, `{"name": {"DataType": ..., "StringValue": ...}}`.
        delay: DelaySeconds, or `None` for the queue's own.
        group_id: MessageGroupId; FIFO queues need one, standard queues use it for fairness.
        deduplication_id: MessageDeduplicationId, FIFO queues only.
    """

    body: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    delay: int | None = None
    group_id: str | None = None
    deduplication_id: str | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How a batch ended, by the entries' positions. A batch partly fails as a matter of course.

    Attributes:
        failed: position to error; the positions that are not here succeeded. What SQS's answer leaves out
            has failed.
    """

    failed: Mapping[int, SQSError]


class SQS(Protocol):
    """The API actions we use. A `queue_url` is what `queue_url()` returned; timeouts are whole seconds."""

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """ReceiveMessage: up to `max_messages` (1 to 10) messages, waiting up to `wait` seconds (0 to 20)."""
        ...

    def discard_idle_connections(self) -> None:
        """Answers fail to come: open new connections from now on. Makes no request; calls in flight go on."""
        ...

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        """DeleteMessageBatch: 1 to 10 receipt handles."""
        ...

    def change_visibility(self, queue_url: str, changes: Sequence[tuple[str, int]]) -> BatchResult:
        """ChangeMessageVisibilityBatch: 1 to 10 pairs of receipt handle and seconds from now (0 to 43200)."""
        ...

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        """SendMessage: returns the message id."""
        ...

    def send_batch(self, queue_url: str, messages: Sequence[OutgoingMessage]) -> BatchResult:
        """SendMessageBatch: 1 to 10 messages, of 1 MiB in all."""
        ...

    def queue_url(self, name: str, owner: str | None = None) -> str:
        """GetQueueUrl, of this account or of account `owner`."""
        ...

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """CreateQueue: returns the URL; of the existing queue, if another creator was faster."""
        ...

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        """GetQueueAttributes: the attributes that are set, as strings."""
        ...

    def purge(self, queue_url: str) -> None:
        """PurgeQueue."""
        ...

    def delete_queue(self, queue_url: str) -> None:
        """DeleteQueue."""
        ...
