"""One broker as a process sees it: where it is, its credentials, its queues."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, cast
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
from celery_sqs_visibility.transport.codec import open_message
from celery_sqs_visibility.transport.temporary_queues import TemporaryQueues

#: What every receive asks for: how often it was received before, when first, its group, and its age.
SYSTEM_ATTRIBUTES = (
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "MessageGroupId",
    "SentTimestamp",
)

#: What a message attribute adds to an answer of SQS's.
ATTRIBUTES_OF_A_MESSAGE = ("MessageAttributes", "MD5OfMessageAttributes")

#: What kombu fills in where the URL names no host: nobody's endpoint.
NO_HOST = "localhost"

#: What we take of the option `predefined_queues`; kombu knows more.
PREDEFINED_KEYS = ("url", "region", "access_key_id", "secret_access_key", "session_token")

_lock = ProcessLock()  # guards _brokers
_brokers: dict[tuple[int, str], BrokerContext] = {}


class BrokerContext:
    """What the connections of one process to one broker share: its queues and what is known of them."""

    def __init__(self, client: Any, options: Options) -> None:
        self.pid = os.getpid()
        self.options = options
        self.queues = _queues(client, options)
        self.temporary_queues = TemporaryQueues(self.queues)
        self.receive_options = receive_options(options)
        _, self._asked_for = _wanted_attributes(options.fetch_message_attributes)
        self._redeliveries = RedeliveryIndex(options.visibility_timeout)
        letters = options.dead_letter_queue
        self.redrive = RedriveBook((lambda: self.queues.find_or_create(letters)) if letters else None)
        #: Tells the slots of the worker's pool; set by its bootstep, before it consumes.
        self.slots: Callable[[], Slots] | None = None
        #: Celery's name of this node, for dead letters; set by the worker's bootstep, before it consumes.
        self.worker_name = ""
        #: Those in use, of channels that were closed too, as long as something of theirs still runs.
        self.queue_consumers: WeakSet[QueueConsumer] = WeakSet()
        #: Of these, the worker's own: the others are of consumers inside its tasks.
        self.worker_queue_consumers: WeakSet[QueueConsumer] = WeakSet()

    def new_queue_consumer(self, buffer: Buffer, *, for_worker: bool) -> QueueConsumer:
        """A place to hold what is received from it, by a worker or by a consumer that has no slots."""
        queue_consumer = QueueConsumer(
            self.options,
            self.receive_options,
            self.open_message,
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

    def open_message(self, queue: Queue, message: ReceivedMessage) -> Opened:
        """Read a received message, of whose attributes the task is given those that the user asked for.

        Raises:
            UnreadableError: it is not kombu's.
        """
        return open_message(queue, _with_attributes(message, self._asked_for))


def shared_broker(client: Any, options: Options) -> BrokerContext:
    """The broker of a kombu Connection, the same for equal settings in the same process. Any thread."""
    settings = (client.hostname, client.port, client.userid, client.password)
    # Without what kombu adds when it publishes with a retry policy: Celery's connections do not all have it.
    ours = {name: v for name, v in client.transport_options.items() if name not in OTHER_PEOPLES_OPTIONS}
    key = os.getpid(), repr((settings, sorted(ours.items(), key=repr)))
    with _lock:
        if key not in _brokers:
            _brokers[key] = BrokerContext(client, options)
        return _brokers[key]


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
    """The endpoint that the broker URL names; `None` leaves it to botocore, as for any boto3 program."""
    if not hostname or (hostname == NO_HOST and port is None):
        return None
    return f"{'https' if secure else 'http'}://{hostname}{f':{port}' if port else ''}"


def receive_options(options: Options) -> ReceiveOptions:
    """What every receive asks for, the user's wishes included.

    That is all message attributes: a dead letter keeps those of its sender, and they cost no request.
    """
    system, _ = _wanted_attributes(options.fetch_message_attributes)
    names = ("All",) if "All" in system else tuple(sorted({*system, *SYSTEM_ATTRIBUTES}))
    return ReceiveOptions(options.visibility_timeout, names, ("All",))


def _with_attributes(message: ReceivedMessage, names: tuple[str, ...]) -> ReceivedMessage:
    """The message with these of its attributes, as if no others had been received."""
    attributes = message.get("MessageAttributes")
    if not attributes or "All" in names:
        return message
    others = {key: value for key, value in message.items() if key not in ATTRIBUTES_OF_A_MESSAGE}
    kept = {name: value for name, value in attributes.items() if is_asked_for(name, names)}
    return cast("ReceivedMessage", {**others, "MessageAttributes": kept} if kept else others)


def _wanted_attributes(wanted: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The system and the custom attributes of `fetch_message_attributes`, in kombu's several forms."""
    if isinstance(wanted, Mapping):
        system = wanted.get("MessageSystemAttributeNames") or ()
        custom = wanted.get("MessageAttributeNames") or ()
    else:
        system, custom = ((wanted,) if isinstance(wanted, str) else wanted or ()), ()
    return _all_or_these(system), _all_or_these(custom)


def _all_or_these(names: Any) -> tuple[str, ...]:
    return ("All",) if any(str(name).lower() == "all" for name in names) else tuple(sorted(set(names)))
