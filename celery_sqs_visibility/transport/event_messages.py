"""Tasks made of messages that are not Celery's: AWS events, and messages for the user's adapter.

Only in a worker's main process. Polling threads call `EventMessages.decode`, which has no state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, overload

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, Records, loggable
from celery_sqs_visibility.delivery.receive.decoder import DecodeMessage
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.continued_events import (
    WHOLE,
    ContinuedEvent,
    continued_in,
    unsent_part,
    with_ours,
    without_ours,
)
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes
from celery_sqs_visibility.policy.payload_pointers import SIZE_ATTRIBUTES
from celery_sqs_visibility.transport.aws_events import contents, events_of, is_s3_test
from celery_sqs_visibility.transport.codec import (
    OWN_BODY,
    NoTaskError,
    decode_message,
    encode_payload,
    open_payload,
    with_eta,
)
from celery_sqs_visibility.transport.task_message import task_id_for, task_payload

logger = logging.getLogger(__name__)


class TaskCall(NamedTuple):
    """A call of a task, given by name or object, as an adapter returns it.

    `place` is the index of its record in the event, or `WHOLE`.
    """

    task: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    place: int = WHOLE


#: The option `message_adapter`. It returns `None` for a message that it does not handle.
Adapter = Callable[[str, Mapping[str, Any]], tuple[Any, Sequence[Any], Mapping[str, Any]] | None]

#: The length of an adapter's answer: task, arguments, keyword arguments.
ANSWER_LENGTH: Final = 3


@dataclass(frozen=True)
class EventMessages:
    """Decodes any message for the tasks of a worker.

    Attributes:
        routes: which task takes which AWS event.
        adapter: asked about messages that no route takes.
        decode_task: decodes a message of Celery's; raises `NoTaskError` for any other.
        attribute_names: the message attributes that tasks see.
    """

    routes: EventRoutes
    adapter: Adapter | None = None
    decode_task: DecodeMessage = decode_message
    attribute_names: Sequence[str] = ("All",)

    def decode(self, queue: Queue, message: ReceivedMessage) -> DecodedMessage | Delete | Records:
        """Decode a task with `decode_task`, and any other message by its content. Any thread.

        Raises:
            UnreadableError: no task takes it.
        """
        try:
            return self.decode_task(queue, message)
        except NoTaskError as error:
            no_task = error
        body = _parsed(message["Body"])
        if any(map(is_s3_test, contents(body))):
            fields = Fields(queue=queue.name, message_id=message["MessageId"])
            logger.info("S3's test event is deleted: notifications arrive (%s)", fields)
            return Delete()
        event = continued_in(message.get("MessageAttributes", {}), message["MessageId"])
        attributes = without_ours(message.get("MessageAttributes", {}))
        calls = self._routed(body) or self._adapted(queue, event.message_id, message, attributes)
        if not calls:
            raise self._no_route(no_task, body)
        if len(calls) == 1:
            return self._single(calls[0], event, queue, {**message, "MessageAttributes": dict(attributes)})
        copies = EventCopies(calls, event, queue, message)
        return Records(copies, message["Body"], copies.remainder) if copies else Delete()

    def _routed(self, body: Any) -> list[TaskCall]:
        """The calls for an AWS event; empty if no task takes one of its records."""
        for content in contents(body):
            events = events_of(content)
            taken = [(self.routes.find(name), record) for name, record in events]
            if taken and all(route for route, _ in taken):
                return _calls(content, [(route, record) for route, record in taken if route])
        return []

    def _adapted(
        self, queue: Queue, message_id: str, message: ReceivedMessage, attributes: Mapping[str, Any]
    ) -> list[TaskCall]:
        if self.adapter is None:
            return []
        try:
            answer = self.adapter(
                message["Body"], _adapter_attributes(queue, message_id, message, attributes)
            )
        except Exception as error:
            raise UnreadableError(f"the message_adapter failed: {error!r}") from error
        if answer is None:
            return []
        if not isinstance(answer, (tuple, list)) or len(answer) != ANSWER_LENGTH:
            raise UnreadableError(
                "the message_adapter should return (task, args, kwargs) or None, and returned one of type "
                f"{type(answer).__name__}"
            )
        return [TaskCall(*answer)]

    def _single(
        self, call: TaskCall, event: ContinuedEvent, queue: Queue, message: ReceivedMessage
    ) -> DecodedMessage:
        payload = _payload(call, task_id_for(event.message_id), queue)
        if event.eta is not None:
            payload["headers"] = with_eta(payload["headers"], event.eta, event.retries)
        return open_payload({**payload, OWN_BODY: message["Body"]}, queue, message, self.attribute_names)

    def _no_route(self, error: NoTaskError, body: Any) -> UnreadableError:
        names = sorted({name for content in contents(body) for name, _ in events_of(content)})
        untaken = [repr(name) for name in names if self.routes.find(name) is None]
        if not untaken:
            return error
        return UnreadableError(loggable(f"no task has an sqs_event for {' or '.join(untaken)}: {error}"))


def _parsed(body: str) -> Any:
    """The body parsed as JSON; `None` if it isn't JSON."""
    try:
        return json.loads(body)
    except Exception:  # noqa: BLE001 - any text, and as deeply nested as anybody likes
        return None


def _calls(content: dict[str, Any], taken: Sequence[tuple[EventRoute, dict[str, Any]]]) -> list[TaskCall]:
    """A call for each record, and one for each task that takes the whole message."""
    whole = {route.task: TaskCall(route.task, [content], {}) for route, _ in taken if route.per_message}
    each = [
        TaskCall(route.task, [record], {}, place)
        for place, (route, record) in enumerate(taken)
        if not route.per_message
    ]
    return [*whole.values(), *each]


def _payload(call: TaskCall, task_id: str, queue: Queue) -> dict[str, Any]:
    task, args, kwargs, _ = call
    try:
        return task_payload(task, args, kwargs, task_id, queue.name)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableError(f"the arguments of its task {task!r} cannot be sent: {error!r}") from error


class EventCopies(Sequence[OutgoingMessage]):
    """Messages for the calls of an event that has several; if the event is continued, for the unsent ones.

    Each is made on request, with its payload in its body even if the event's payload was in S3.
    """

    def __init__(
        self, calls: Sequence[TaskCall], event: ContinuedEvent, queue: Queue, message: ReceivedMessage
    ) -> None:
        self._left = [(index, call) for index, call in enumerate(calls) if event.left(call.place)]
        self._records = 1 + max(call.place for call in calls)
        self._event = event
        self._queue = queue
        attributes = message.get("MessageAttributes", {})
        self._body = message["Body"]
        self._attributes = {name: v for name, v in attributes.items() if name not in SIZE_ATTRIBUTES}
        self._group = message.get("Attributes", {}).get("MessageGroupId")

    def __len__(self) -> int:
        return len(self._left)

    @overload
    def __getitem__(self, index: int) -> OutgoingMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[OutgoingMessage]: ...

    def __getitem__(self, index: int | slice) -> OutgoingMessage | list[OutgoingMessage]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number, call = self._left[index]
        task_id = task_id_for(self._event.message_id, number)
        body = encode_payload(_payload(call, task_id, self._queue))
        return self._message(body, without_ours(self._attributes), task_id)

    def remainder(self, indices: Sequence[int]) -> OutgoingMessage | None:
        """One message of the event for the copies at these indices; `None` if it has too many attributes."""
        places = [self._left[index][1].place for index in indices]
        event = unsent_part(self._event, places, self._records)
        attributes = with_ours(self._attributes, event)
        if attributes is None:
            return None
        return self._message(self._body, attributes, task_id_for(self._event.message_id, -1 - len(places)))

    def _message(self, body: str, attributes: Mapping[str, Any], unique: str) -> OutgoingMessage:
        return OutgoingMessage(
            body=body,
            attributes=attributes,
            group_id=self._group,
            deduplication_id=unique if self._queue.fifo else None,
        )


def _adapter_attributes(
    queue: Queue, message_id: str, message: ReceivedMessage, attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes for an adapter: the message's as text or bytes, overridden by SQS's own.

    The message id is that of the event's first message.
    """
    custom = {name: value.get("StringValue", value.get("BinaryValue")) for name, value in attributes.items()}
    own = message.get("Attributes", {})
    return {**custom, **own, "MessageId": message_id, "queue": queue.name}
