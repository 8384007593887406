"""Makes of a dead letter the message to send back: as it was, with all its attempts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.delivery.receive.decoder import DecodedMessage
from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTES, SENT_MEMBERS
from celery_sqs_visibility.operate.dead_letters.letter import Letter
from celery_sqs_visibility.policy.message_attributes import message_bytes
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES
from celery_sqs_visibility.transport.codec import DEFAULT_GROUP, encode_payload


def message_to_send_back(letter: Letter, *, fifo: bool) -> OutgoingMessage:
    """The message for its source queue, with its sender's attributes and its group.

    It has a new deduplication id: a FIFO queue would swallow one that it has seen in the last five minutes.
    """
    return OutgoingMessage(
        body=_body(letter),
        attributes=_of_the_sender(letter),
        group_id=letter.system.get("MessageGroupId") or (DEFAULT_GROUP if fifo else None),
        deduplication_id=str(uuid.uuid4()) if fifo else None,
    )


def _body(letter: Letter) -> str:
    """As it was, but for the retries in a copy's header: a wait for an ETA has written them there."""
    content = letter.content
    if isinstance(content, DecodedMessage) and (content.payload.get("headers") or {}).get("retries"):
        payload = content.payload
        return encode_payload({**payload, "headers": {**payload["headers"], "retries": 0}})
    return letter.message["Body"]


def _of_the_sender(letter: Letter) -> dict[str, dict[str, Any]]:
    ours = ATTRIBUTES if letter.is_copy else ()
    return {
        name: {member: value[member] for member in SENT_MEMBERS if member in value}
        for name, value in letter.attributes.items()
        if name not in ours
    }


def batches_of(messages: Sequence[OutgoingMessage], most: int = BATCH_ENTRIES) -> Iterator[range]:
    """Positions of messages that fit into one SendMessageBatch, in their order."""
    begin, size = 0, 0
    for position, message in enumerate(messages):
        own = message_bytes(message.body, message.attributes)
        if position > begin and (position - begin == most or size + own > MESSAGE_BYTES):
            yield range(begin, position)
            begin, size = position, 0
        size += own
    if begin < len(messages):
        yield range(begin, len(messages))
