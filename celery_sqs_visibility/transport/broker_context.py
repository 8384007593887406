"""What the connections of a process to one broker share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from weakref import WeakSet

from celery_sqs_visibility.aws.client_factory import ClientSettings, frozen_config
from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.aws.queues import PredefinedQueue, Queue, Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.aws.shared import shared_sqs
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.decoder import Opened
from celery_sqs_visibility.policy.message_attributes import is_asked_for
from celery_sqs_visibility.policy.options import OTHER_PEOPLES_OPTIONS, Options
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.temporary_queues import TemporaryQueues

#: The system attributes that every receive asks for.
SYSTEM_ATTRIBUTES: Final = {
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "MessageGroupId",
    "SentTimestamp",
}

#: What kombu fills in where the URL names no host.
NO_HOST: Final = "localhost"

#: The keys of the option `predefined_queues` that count here; kombu has more.
PREDEFINED_KEYS: Final = ("url", "region", "access_key_id", "secret_access_key", "session_token")

_lock = ProcessLock()  # guards _contexts
_contexts: dict[tuple[int, str], BrokerContext] = {}


class BrokerContext:
    """The queues of one broker, as one process sees them, and what is known of them.

    Attributes:
        slots: tells the slots of the worker's pool; its bootstep sets it before it consumes.
        worker_name: Celery's name of this node, which its bootstep sets as well; empty in a client.
        queue_consumers: those in use, of closed channels too while a task of theirs runs.
        worker_queue_consumers: those of the worker itself; the others belong to consumers inside its tasks.
    """

    def __init__(self, client: Any, options: Options) -> None:
        self.pid = os.getpid()
        self.options = options
        self.queues = _queues(client, options)
        self.temporary_queues = TemporaryQueues(self.queues)
        system, self._attribute_names = _wanted_attributes(options.fetch_message_attributes)
        system = ("All",) if "All" in system else tuple(sorted({*system, *SYSTEM_ATTRIBUTES}))
        # All message attributes: a dead letter keeps those of its sender, and they cost no request.
        self.receive_options = ReceiveOptions(options.visibility_timeout, system, ("All",))
        self._redeliveries = RedeliveryIndex(options.visibility_timeout)
        letters = options.dead_letter_queue
        self.redrive = RedriveBook((lambda: self.queues.find_or_create(letters)) if letters else None)
        self.slots: Callable[[], Slots] | None = None
        self.worker_name = ""
        self.queue_consumers: WeakSet[QueueConsumer] = WeakSet()
        self.worker_queue_consumers: WeakSet[QueueConsumer] = WeakSet()

    def new_queue_consumer(self, buffer: Buffer, *, for_worker: bool) -> QueueConsumer:
        """A consumer of the worker, or one without slots."""
        queue_consumer = QueueConsumer(
            self.options,
            self.receive_options,
            self.decode_message,
            self.redrive,
            self._redeliveries,
            buffer,
            slots=self.slots if for_worker else None,
            worker_name=self.worker_name,
        )
        self.queue_consumers.add(queue_consumer)
        if for_worker:
            self.worker_queue_consumers.add(queue_consumer)
        return queue_consumer

    def decode_message(self, queue: Queue, message: ReceivedMessage) -> Opened:
        """Read a received message. The task sees those of its attributes that the user asked for.

        Raises:
            UnreadableError: it is not kombu's.
        """
        return decode_message(queue, _with_attributes(message, self._attribute_names))


def shared_context(client: Any, options: Options) -> BrokerContext:
    """The context of a kombu Connection, the same for equal settings in the same process. Any thread."""
    settings = (client.hostname, client.port, client.userid, client.password)
    # Without what kombu adds when it publishes with a retry policy: Celery's connections do not all have it.
    ours = {name: v for name, v in client.transport_options.items() if name not in OTHER_PEOPLES_OPTIONS}
    key = os.getpid(), repr((settings, sorted(ours.items(), key=repr)))
    with _lock:
        if key not in _contexts:
            _contexts[key] = BrokerContext(client, options)
        return _contexts[key]


def _queues(client: Any, options: Options) -> Queues:
    return Queues(
        shared_sqs(_settings(client, options)),
        prefix=options.queue_name_prefix,
        predefined={
            name: PredefinedQueue(**{key: queue[key] for key in PREDEFINED_KEYS if key in queue})
            for name, queue in options.predefined_queues.items()
        },
        sqs_for=lambda predefined: shared_sqs(_settings(client, options, predefined)),
        attributes={
            "VisibilityTimeout": str(options.visibility_timeout),
            **{name: str(value) for name, value in options.sqs_creation_attributes.items()},
        },
        tags=options.queue_tags,
    )


def _settings(client: Any, options: Options, predefined: PredefinedQueue | None = None) -> ClientSettings:
    own = predefined if predefined and predefined.access_key_id else None
    return ClientSettings(
        region=(predefined.region if predefined else None) or options.region,
        endpoint_url=_endpoint(client.hostname, client.port, secure=options.is_secure),
        access_key_id=own.access_key_id if own else client.userid or None,
        secret_access_key=own.secret_access_key if own else client.password or None,
        session_token=own.session_token if own else None,
        role_arn=options.sts_role_arn,
        role_seconds=options.sts_token_timeout,
        role_buffer_seconds=options.sts_token_buffer_time,
        config=frozen_config(options.client_config),
    )


def _endpoint(hostname: str | None, port: int | None, *, secure: bool) -> str | None:
    """The endpoint that the broker URL names; `None` leaves it to botocore, as in any boto3 program."""
    if not hostname or (hostname == NO_HOST and port is None):
        return None
    return f"{'https' if secure else 'http'}://{hostname}{f':{port}' if port else ''}"


def _with_attributes(message: ReceivedMessage, names: tuple[str, ...]) -> ReceivedMessage:
    """The message with the named attributes, as if no others had been received."""
    attributes = message.get("MessageAttributes")
    if not attributes or "All" in names:
        return message
    kept = {name: value for name, value in attributes.items() if is_asked_for(name, names)}
    # The digest covers all attributes.
    others = {k: v for k, v in message.items() if k not in ("MessageAttributes", "MD5OfMessageAttributes")}
    return cast("ReceivedMessage", {**others, "MessageAttributes": kept} if kept else others)


def _wanted_attributes(wanted: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The system and the custom attributes of `fetch_message_attributes`, in kombu's several forms."""
    if isinstance(wanted, Mapping):
        names = wanted.get("MessageSystemAttributeNames"), wanted.get("MessageAttributeNames")
    else:
        names = ((wanted,) if isinstance(wanted, str) else wanted), None
    system, custom = (tuple(each or ()) for each in names)
    return _all_or_these(system), _all_or_these(custom)


def _all_or_these(names: tuple[Any, ...]) -> tuple[str, ...]:
    return ("All",) if any(str(name).lower() == "all" for name in names) else tuple(sorted(set(names)))
