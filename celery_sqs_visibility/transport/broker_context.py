"""What the connections of a process to one broker share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.aws.port import SQS, ReceiveOptions
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.aws.queues import PredefinedQueue, Queue, Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.aws.shared import shared_sqs
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.lease_table import lease_table
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.turns import Turns
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.other_options import OTHER_PEOPLES_OPTIONS
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.transport.broker_url import BrokerURL
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.publish_retries import PublishAttempts
from celery_sqs_visibility.transport.temporary_queues import TemporaryQueues

#: The system attributes that every receive asks for.
SYSTEM_ATTRIBUTES: Final = {
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "MessageGroupId",
    "SentTimestamp",
}

#: The keys of the option `predefined_queues` that count here; kombu has more.
CREDENTIALS: Final = ("access_key_id", "secret_access_key", "session_token")
PREDEFINED_KEYS: Final = ("url", "region", *CREDENTIALS)

_lock = ProcessLock()  # guards _contexts
_contexts: dict[tuple[int, str], BrokerContext] = {}


class BrokerContext:
    """The queues of one broker, as one process sees them, and what is known of them.

    Attributes:
        slots: gives the slots of the worker's pool; a bootstep sets it before the worker consumes.
        worker_name: Celery's name of this node; a bootstep sets it. Empty in a client.
        decode_message: see `codec.decode_message`.
        queue_consumers: those in use, of closed channels too while a task of theirs runs.
        worker_queue_consumers: those of the worker itself; the others belong to consumers inside its tasks.
    """

    def __init__(self, broker: BrokerURL, options: Options) -> None:
        self.pid = os.getpid()
        self.options = options
        self.queues = _queues(broker, options)
        self.temporary_queues = TemporaryQueues(self.queues)
        system, custom = _wanted_attributes(options.fetch_message_attributes)
        system = ("All",) if "All" in system else tuple(sorted({*system, *SYSTEM_ATTRIBUTES}))
        # All message attributes: a dead letter keeps those of its sender, and they cost no request.
        self.receive_options = ReceiveOptions(options.visibility_timeout, system, ("All",))
        self.decode_message = partial(decode_message, attribute_names=custom)
        self._publish_attempts: WeakKeyDictionary[Any, PublishAttempts] = WeakKeyDictionary()
        self._redeliveries = RedeliveryIndex(options.longest_visibility_timeout)
        self.redrive = RedriveBook(self._finds_dead_letters)
        self._turns = Turns(options.queue_order, options.for_queue) if options.has_turns else None
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
            leases=lease_table(),
            worker_name=self.worker_name,
            turns=self._turns if for_worker else None,
        )
        self.queue_consumers.add(queue_consumer)
        if for_worker:
            self.worker_queue_consumers.add(queue_consumer)
        return queue_consumer

    def receive_options_of(self, queue: str) -> ReceiveOptions:
        """For one receive from a queue, by Celery's name of it."""
        return replace(
            self.receive_options, visibility_timeout=self.options.for_queue(queue).visibility_timeout
        )

    def _finds_dead_letters(self, queue: str) -> Callable[[], Queue] | None:
        letters = self.options.for_queue(queue).dead_letter_queue
        return partial(self.queues.find_or_create, letters) if letters else None

    def publish_attempts(self, connection: Any) -> PublishAttempts:
        """The attempts of a kombu Connection so far."""
        return self._publish_attempts.setdefault(connection, PublishAttempts())


def shared_context(given: Mapping[str, Any], broker: BrokerURL, options: Options) -> BrokerContext:
    """The context of a broker, the same for equal settings in the same process. Any thread.

    `given` are the transport options as the user wrote them.
    """
    # Without what kombu adds when it publishes with a retry policy: Celery's connections do not all have it.
    ours = {name: v for name, v in given.items() if name not in OTHER_PEOPLES_OPTIONS}
    key = os.getpid(), repr((broker, broker.password, sorted(ours.items(), key=repr)))
    with _lock:
        if key not in _contexts:
            _contexts[key] = BrokerContext(broker, options)
        return _contexts[key]


def _queues(broker: BrokerURL, options: Options) -> Queues:
    settings = ClientSettings(
        region=options.region,
        endpoint_url=_endpoint(broker, secure=options.is_secure),
        access_key_id=broker.userid,
        secret_access_key=broker.password,
        role_arn=options.sts_role_arn,
        role_seconds=options.sts_token_timeout,
        role_buffer_seconds=options.sts_token_buffer_time,
        config=frozen_config(options.client_config),
    )

    def sqs_for(predefined: PredefinedQueue) -> SQS:
        own = {name: getattr(predefined, name) for name in CREDENTIALS} if predefined.access_key_id else {}
        return shared_sqs(replace(settings, region=predefined.region or options.region, **own))

    return Queues(
        shared_sqs(settings),
        prefix=options.queue_name_prefix,
        predefined={
            name: PredefinedQueue(**{key: queue[key] for key in PREDEFINED_KEYS if key in queue})
            for name, queue in options.predefined_queues.items()
        },
        sqs_for=sqs_for,
        attributes=partial(_creation_attributes, options),
        tags=options.queue_tags,
    )


def _creation_attributes(options: Options, queue: str) -> dict[str, str]:
    timeout = options.for_queue(queue).visibility_timeout
    return {"VisibilityTimeout": str(timeout)} | {
        name: str(value) for name, value in options.sqs_creation_attributes.items()
    }


def _endpoint(broker: BrokerURL, *, secure: bool) -> str | None:
    """The endpoint that the broker URL names; `None` leaves it to botocore, as in any boto3 program."""
    if broker.host is None:
        return None
    port = "" if broker.port is None else f":{broker.port}"
    return f"{'https' if secure else 'http'}://{broker.host}{port}"


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
