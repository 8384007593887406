"""kombu's Message and QoS on SQS."""

from __future__ import annotations

import sys
from binascii import a2b_base64
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual
from kombu.utils.json import loads as kombu_loads

from celery_sqs_visibility.contacts.channel import DECODERS, LeanMessage
from celery_sqs_visibility.core.settlements import Direct, Forward, Hold
from celery_sqs_visibility.policy.continued_events import continued_in, with_ours
from celery_sqs_visibility.policy.message_limits import FEW_BRACKETS, PAYLOAD_BYTES
from celery_sqs_visibility.policy.options import DECOMPRESSED_BYTES
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport.codec import OWN_BODY, TYPED, encode_payload, read_json, with_eta
from celery_sqs_visibility.transport.content_bounds import check_content, inflate

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import Delivery
    from celery_sqs_visibility.transport.broker_context import BrokerContext

#: The content type and the encodings of the bodies that Celery sends by default.
JSON: Final = "application/json"
UTF_8: Final = ("utf-8", "UTF-8", "us-ascii")

#: Marks a typed value of kombu's JSON in a body.
TYPED_BYTES: Final = TYPED.encode()


class Message(LeanMessage):
    """A kombu message that knows its delivery.

    Attributes:
        delivery: the delivery to settle; `None` if the message was fetched with `basic_get`, or came by
            remote control.
    """

    body: Any  # bytes, though celery-types says str
    delivery_tag: str

    def __init__(
        self,
        payload: dict[str, Any],
        channel: Any,
        accept: Container[str] | None = None,
        delivery: Delivery | None = None,
    ) -> None:
        self.delivery = delivery
        headers, properties = payload.get("headers") or {}, payload["properties"]
        body, tag = payload.get("body"), properties["delivery_tag"]
        try:
            if body and properties.get("body_encoding") == "base64" and "compression" not in headers:
                # The same result as kombu's two constructors, in a third of their steps.
                self.body = a2b_base64(body.encode())
                self.channel = channel
                self.delivery_tag = tag
                self.content_type = payload.get("content-type")
                self.content_encoding = payload.get("content-encoding")
                self.properties = properties
                self.delivery_info = properties.get("delivery_info") or {}
                self.errors = []
            else:
                self._init_unusual(payload, headers, channel)
        except Exception:  # noqa: BLE001 - kombu's consumer gives `errors` to `on_decode_error`
            super().__init__({**payload, "headers": {}, "body": None}, channel=channel)
            self.errors = [sys.exc_info()]
        self.sent = payload
        self.headers = headers
        self.accept = accept

    def _init_unusual(self, payload: dict[str, Any], headers: dict[str, Any], channel: Any) -> None:
        """Take a body that is compressed or not in base64. kombu would decompress it without a limit."""
        others = {name: value for name, value in headers.items() if name != "compression"}
        super().__init__({**payload, "headers": others}, channel=channel)
        if headers.get("compression"):
            self.body = inflate(self.body, headers["compression"], self._largest_body())

    @property
    def is_broadcast(self) -> bool:
        """Whether it came by a fanout exchange, so that other workers have it, too. Makes no request."""
        if self.delivery is None or self.channel is None:
            return False
        context: BrokerContext = self.channel.context
        return context.is_broadcast(self.delivery.queue.name, self.delivery_info.get("exchange"))

    def _largest_body(self) -> int:
        """The limit of the decompressed body in bytes; payloads in S3 may be larger."""
        options = getattr(getattr(self.channel, "context", None), "options", None)
        most = options.decompressed_max_bytes if options else DECOMPRESSED_BYTES
        in_s3 = self.delivery is not None and self.delivery.pointer is not None
        return max(most, PAYLOAD_BYTES) if in_s3 else most

    def decoded(self) -> Any:
        """Decode the body. Plain JSON, the usual case, takes a third of the time of kombu's typed JSON.

        Raises:
            TooLargeError: it would exceed a limit.
            Exception: of its decoder.
        """
        body = self.body
        plain = (
            self.content_type == JSON
            and JSON in (self.accept or ())
            and self.content_encoding in UTF_8
            and isinstance(body, bytes)
            and TYPED_BYTES not in body
            and DECODERS.get(JSON) is kombu_loads  # not if the user has registered another
        )
        small = plain and (len(body) <= FEW_BRACKETS or body.count(b"[") + body.count(b"{") <= FEW_BRACKETS)
        if not small and isinstance(body, (bytes, str)):
            check_content(body, self.content_type, self.content_encoding, self.accept)
        if plain:
            try:
                return read_json(body.decode(self.content_encoding))
            except Exception:  # noqa: BLE001, S110 - kombu raises its own
                pass
        return super().decoded()

    def give_up(self, reason: str, when_exhausted: str | None = None, **attributes: str) -> None:
        """Give up the message after its task failed for good, by `Delivery.give_up`. Any thread."""
        if self.delivery is not None:
            self.delivery.give_up(reason, self._encoded, when_exhausted, **attributes)

    def renewal(self, eta: float, retries: int, otherwise: Direct | None = None) -> Forward | None:
        """The settlement that lets the task wait in SQS until `eta`, in seconds since the epoch, if possible.

        If the queue refuses the copy, the message is settled with `otherwise`, or Celery holds it until then.
        """
        # The ETA can't be changed in a message of protocol 1, or in a payload in S3.
        if self.delivery is None or self.delivery.pointer is not None or "task" not in self.headers:
            return None
        return self.delivery.renewal(eta, partial(self._copied, eta, retries), otherwise or Hold(self.sent))

    def _copied(self, eta: float, retries: int, delivery: Delivery) -> tuple[str, Mapping[str, Any]] | None:
        """Body and attributes of a waiting copy. An event keeps its body, and needs room for an attribute."""
        if (own := self.sent.get(OWN_BODY)) is None:
            payload = {**self.sent, "headers": with_eta(self.headers, eta, retries)}
            return encode_payload(payload), delivery.message_attributes
        event = continued_in(delivery.message_attributes, delivery.facts.message_id)
        attributes = with_ours(delivery.message_attributes, replace(event, eta=eta, retries=retries))
        return None if attributes is None else (str(own), attributes)

    def _encoded(self) -> str:
        """The body of a copy: the encoded message, or the pointer to its payload."""
        pointer = self.delivery.pointer if self.delivery is not None else None
        return encode_payload(self.sent) if pointer is None else pointer.body

    def come_back(self, error: BaseException) -> None:
        """Let SQS deliver it again after an error of this process, by `Delivery.come_back`."""
        if self.delivery is not None:
            self.delivery.come_back(error)
            self.note_rejected()

    def refuse(self, reason: str, *, others_may: bool = False) -> None:
        """Refuse a message that this worker can't run, by `Delivery.refuse`. Never deletes it."""
        if self.delivery is not None:
            self.delivery.refuse(reason, self._encoded(), others_may=others_may)
            self.note_rejected()


class QoS(virtual.QoS):
    """The prefetch count. The messages are tracked by the holder, which outlives the channel.

    If the consumer sets none, the count is ten more than its unsettled messages, because kombu's SQS
    transport receives ten for each `drain_events`. The thread that drains.
    """

    restore_at_shutdown = False
    channel: Any

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.set_by_consumer = False
        self._unsettled: set[str] = set()

    def append(self, message: Message, delivery_tag: str) -> None:
        """Note that the message was handed to its consumer."""
        if not self.set_by_consumer and message.delivery is not None:
            self._unsettled.add(delivery_tag)

    def raised_prefetch_count(self) -> int:
        """The prefetch count that allows ten more messages."""
        self._unsettled = {tag for tag in self._unsettled if self.channel.delivery(tag) is not None}
        return BATCH_ENTRIES + len(self._unsettled)
