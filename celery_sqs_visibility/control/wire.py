"""Wire format of remote control: kombu's messages with JSON bodies, and no other format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kombu.serialization import loads as load_content
from kombu.utils.json import dumps, loads

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.errors import TooLargeError, UnreadableError
from celery_sqs_visibility.policy.control_names import is_address
from celery_sqs_visibility.policy.message_limits import truncated
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

JSON: Final = "application/json"

#: The header with the time until which the caller waits, by its clock (kombu/pidbox.py: `Mailbox._publish`).
EXPIRES: Final = "expires"

#: The header with the addresses of the monitors in the caller's process, by the exchange of their events.
MONITORS: Final = "monitors"

#: How many addresses of one exchange are read: a process has an event queue for each receiver.
MAX_ADDRESSES: Final = 16

#: The property with the seconds for which the caller still waits: two machines' clocks may differ.
EXPIRES_IN: Final = "expires_in"

#: The property that identifies a message that was sent twice, because SQS's answer was lost.
ID: Final = "message_id"


#: The command with which a monitor wakes workers up (celery/events/receiver.py: `wakeup_workers`).
HEARTBEAT: Final = {
    "body": '{"method": "heartbeat", "arguments": {}, "destination": null, "pattern": null, "matcher": null}',
    "content-type": JSON,
    "content-encoding": "utf-8",
}


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A received message.

    Attributes:
        id: the sender's id of the message, or SQS's; the same for a copy.
        payload: in the format of kombu's virtual transports.
        routing_key: the one it was published with.
        monitors: those in its sender's process, see `MONITORS`.
        expires_in: seconds from the receive for which anybody waits for its effect; `None` is for ever.
    """

    id: str
    payload: dict[str, Any]
    routing_key: str
    expires_in: float | None
    monitors: dict[str, list[str]]


def body_of(message: Mapping[str, Any]) -> Any:
    """The content of a message that this process publishes, decoded with any serializer."""
    kind = message["content-type"]
    return load_content(message["body"], kind, message["content-encoding"], accept={kind})


def text_of(message: Mapping[str, Any]) -> str:
    """The content of a message that this process publishes, as JSON."""
    body = message["body"]
    return body if message["content-type"] == JSON and isinstance(body, str) else str(dumps(body_of(message)))


def encode(
    message: Mapping[str, Any],
    body: Any,
    exchange: str,
    routing_key: str,
    *,
    message_id: str,
    expires_in: float | None = None,
) -> str:
    """The message with that content, as the body of an SQS message.

    Raises:
        TooLargeError: it is too large for SQS.
    """
    more = {EXPIRES_IN: expires_in, ID: message_id}
    text = envelope(dumps(body), message.get("headers") or {}, exchange, routing_key, more)
    if len(text) > MESSAGE_BYTES:
        raise TooLargeError(f"it has {len(text)} bytes, and a message in SQS may have {MESSAGE_BYTES}")
    return text


def envelope(
    body: str,
    headers: Mapping[str, Any],
    exchange: str,
    routing_key: str,
    properties: Mapping[str, Any] | None = None,
) -> str:
    """The body of an SQS message with that content, which must be JSON."""
    info = {"exchange": exchange, "routing_key": routing_key}
    properties = {**(properties or {}), "delivery_info": info}
    content = {"body": body, "content-type": JSON, "headers": dict(headers), "properties": properties}
    return str(dumps(content))


def decode(received: ReceivedMessage, reply_exchange: str | None = None) -> ControlMessage:
    """Read a message: with `reply_exchange`, a command whose replies go to a queue of that exchange.

    Raises:
        UnreadableError: it is not JSON, or not of this form, or names another place for its replies.
    """
    try:
        sent = json.loads(received["Body"])
        properties, headers, body = sent["properties"], sent["headers"], sent["body"]
        routing_key = properties["delivery_info"]["routing_key"]
        if sent["content-type"] != JSON or not isinstance(said := loads(body), dict | list):
            raise UnreadableError("its content is not JSON")  # noqa: TRY301
        if reply_exchange is not None:
            _check_reply_to(said, reply_exchange)
        expires_in = properties.get(EXPIRES_IN)
        if expires_in is not None:
            expires_in = float(expires_in) - _seconds_in_queue(received)
        message_id = str(properties.get(ID) or received["MessageId"])
        properties = {**properties, "delivery_tag": received["MessageId"]}
        content = {"body": str(body), "content-type": JSON, "content-encoding": "utf-8"}
        plain = {name: value for name, value in headers.items() if name != "compression"}  # it is plain now
        payload = {**content, "headers": plain, "properties": properties}
        return ControlMessage(message_id, payload, str(routing_key), expires_in, _monitors(headers))
    except UnreadableError:
        raise
    except Exception as error:  # noqa: BLE001 - of kombu's decoders of typed values
        raise UnreadableError(f"it is not a message of remote control: {error!r}") from None


def _monitors(headers: Mapping[str, Any]) -> dict[str, list[str]]:
    named = headers.get(MONITORS) or {}
    return {
        str(exchange): [str(each) for each in addresses[:MAX_ADDRESSES]]
        for exchange, addresses in named.items()
    }


def _check_reply_to(command: Any, exchange: str) -> None:
    """Refuse a `reply_to` that this package has not written: a worker may be able to send to other queues."""
    reply_to = command.get("reply_to")
    if not reply_to:
        return
    address = str(reply_to["routing_key"]).partition(".")[0]
    if reply_to["exchange"] != exchange or not is_address(address):
        raise UnreadableError(f"its reply_to is not a reply queue: {truncated(repr(reply_to), 200)}")


def _seconds_in_queue(received: ReceivedMessage) -> float:
    """Seconds from the sending to the receive, by SQS's clock only."""
    attributes = received["Attributes"]
    milliseconds = int(attributes["ApproximateFirstReceiveTimestamp"]) - int(attributes["SentTimestamp"])
    return max(0.0, milliseconds / 1000)
