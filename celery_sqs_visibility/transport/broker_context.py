"""What all connections of a process to one broker share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.process_lock import ProcessLock, shared_property
from celery_sqs_visibility.aws.queues import Queue, Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.publish.retries import PublishAttempts
from celery_sqs_visibility.delivery.publish.sharing import SharedRequests
from celery_sqs_visibility.delivery.threads import snapshot, start_thread
from celery_sqs_visibility.policy.eta import DelayLimits, stated_retention
from celery_sqs_visibility.policy.option_parsers import KOMBU_OPTIONS
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_clients import payloads_of, queues_of, settings_of
from celery_sqs_visibility.transport.connection_settings import BrokerURL
from celery_sqs_visibility.transport.routing import use_here
from celery_sqs_visibility.transport.temporary_queues import TemporaryQueues

if TYPE_CHECKING:
    from celery_sqs_visibility.control.remote import RemoteControl
    from celery_sqs_visibility.delivery.consumer import QueueConsumer
    from celery_sqs_visibility.delivery.publish.sender import Sender
    from celery_sqs_visibility.delivery.pump import Pump
    from celery_sqs_visibility.delivery.receive.buffer import Buffer
    from celery_sqs_visibility.delivery.receive.content import DecodedMessage
    from celery_sqs_visibility.delivery.receive.decoder import DecodeMessage
    from celery_sqs_visibility.stores.guarded import GuardedStore
    from celery_sqs_visibility.transport.fanout import Fanout
    from celery_sqs_visibility.transport.receiving import Receiving

#: The system attributes that every receive asks for.
SYSTEM_ATTRIBUTES: Final = {
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "DeadLetterQueueSourceArn",
    "MessageGroupId",
    "SentTimestamp",
}

#: How many recently used contexts are kept when nothing else refers to them.
KEPT_CONTEXTS: Final = 8

_lock = ProcessLock()  # guards _contexts
_contexts: MutableMapping[tuple[int, str], BrokerContext] = WeakValueDictionary()

#: Contexts of the processes that this one was forked from. They are never collected, because threads that
#: this process does not have may hold locks around their sockets.
_inherited: Final[list[BrokerContext]] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_contexts.values()))


class BrokerContext:
    """A process's view of one broker: its queues, and what is known of them.

    Kept by open connections, and by consumers that hold messages. It is part of no reference cycle, so its
    sockets are closed as soon as nothing refers to it.

    Attributes:
        outgoing: sends messages of any size.
        send: sends a single message; concurrent calls share requests.
        new_sender: makes a sender for a block of publications.
        payloads: where large payloads go; `None` if there is no bucket.
        worker_name: Celery's name of this node, set by a bootstep; empty in a client.
        attribute_names: the message attributes that tasks see.
        release_keys: releases the keys of running exclusive tasks; set by a bootstep, if there are any.
        on_remote_shutdown: ends the worker at the command `shutdown`; set by a bootstep.
    """

    def __init__(self, broker: BrokerURL, options: Options) -> None:
        self.pid = os.getpid()
        self.options = options
        self.client_settings = settings_of(broker, options)
        self.queues = queues_of(self.client_settings, options)
        self.payloads = payloads_of(self.client_settings, options)
        self.outgoing = OutgoingMessages(self.payloads)
        self.send = SharedRequests(self.outgoing).send
        self.new_sender = partial(_new_sender, self.queues.forget, self.outgoing)
        self.temporary_queues = TemporaryQueues(self.queues)
        system, custom = _wanted_attributes(options.fetch_message_attributes)
        system = ("All",) if "All" in system else tuple(sorted({*system, *SYSTEM_ATTRIBUTES}))
        # Receive all message attributes: they cost no request, and a dead letter keeps those of its sender.
        self.receive_options = ReceiveOptions(options.visibility_timeout, system, ("All",))
        self.attribute_names = custom
        self._publish_attempts: WeakKeyDictionary[Any, PublishAttempts] = WeakKeyDictionary()
        self.redrive = RedriveBook(partial(_finds_dead_letters, self.queues, options))
        self.worker_name = ""
        self.release_keys: Callable[[], None] | None = None
        self.on_remote_shutdown: Callable[[], None] | None = None

    @shared_property
    def pump(self) -> Pump:
        """Makes the requests that no caller waits for. Imported lazily, because producers need none."""
        from celery_sqs_visibility.delivery.pump import Pump  # noqa: PLC0415

        return Pump()

    @shared_property
    def receiving(self) -> Receiving:
        """The consumers and what they hold. Imported lazily, because producers receive nothing."""
        from celery_sqs_visibility.transport.receiving import Receiving  # noqa: PLC0415

        return Receiving(self.options, self.receive_options, self.redrive, self.pump, self.outgoing)

    @shared_property
    def decode_message(self) -> DecodeMessage:
        """Decodes received messages, by `codec.decode_message`. Imported lazily, like `receiving`."""
        from celery_sqs_visibility.transport.codec import decode_message  # noqa: PLC0415

        return partial(decode_message, attribute_names=self.attribute_names)

    @shared_property
    def decode_for_worker(self) -> DecodeMessage:
        """Decodes messages for a worker; replaced by a bootstep if tasks take AWS events."""
        return self.decode_message

    @shared_property
    def decode_any_message(self) -> partial[DecodedMessage]:
        """Decodes messages for consumers that are not Celery's, by `codec.decode_any_message`."""
        from celery_sqs_visibility.transport.codec import decode_any_message  # noqa: PLC0415

        return partial(decode_any_message, attribute_names=self.attribute_names)

    def new_queue_consumer(self, buffer: Buffer, *, for_worker: bool) -> QueueConsumer:
        """Make a consumer, either a worker's or one without slots."""
        self.receiving.holder.dead_letters.worker_name = self.worker_name
        return self.receiving.new_queue_consumer(
            buffer,
            self.decode_for_worker if for_worker else self.decode_message,
            partial(self._consumers_beside, for_worker=for_worker),
            for_worker=for_worker,
        )

    def _consumers_beside(self, *, for_worker: bool) -> list[QueueConsumer]:
        """The consumers that may take messages received by a consumer's last polls.

        A consumer refers to this method, which keeps the context while the consumer holds a message.
        """
        return snapshot(self.receiving.worker_queue_consumers) if for_worker else []

    def delay_limits(self, queue: Queue) -> DelayLimits:
        """The limits of a message's delay in the queue, as far as they are known. Any thread; no request."""
        stated = stated_retention(self.options.sqs_creation_attributes)
        options = self.options.for_queue(queue.name)
        retention = self.redrive.known_retention(queue) or stated
        return DelayLimits(options.polling_interval_max, retention, options.visibility_timeout)

    @shared_property
    def coordination_store(self) -> GuardedStore | None:
        """The store by which processes coordinate, as for exclusive tasks; `None` without the option.

        Raises:
            OptionError: it can't be opened.
        """
        if self.options.coordination_store is None:
            return None
        from celery_sqs_visibility.stores.guarded import GuardedStore, open_store  # noqa: PLC0415 - few need it

        store = open_store(self.options.coordination_store, self.client_settings)
        return GuardedStore(store, start_thread, prefix=self.options.queue_name_prefix)

    @shared_property
    def fanout(self) -> Fanout:
        """The fanout exchanges. Imported lazily, because most apps have none."""
        from celery_sqs_visibility.transport.fanout import Fanout, topics_of  # noqa: PLC0415

        return Fanout(topics_of(self.client_settings, self.options), self.queues)

    @shared_property
    def control(self) -> RemoteControl:
        """Remote control. Imported lazily, because it is off by default."""
        from celery_sqs_visibility.control.remote import RemoteControl  # noqa: PLC0415

        return RemoteControl(
            self.queues.sqs,
            self.options,
            in_worker=lambda: bool(self.worker_name),
            use_here=use_here,
            pump=self.pump,
        )

    def end_control(self) -> None:
        """Delete the process's control queues, because the process is about to be ended."""
        if self.options.remote_control:
            self.control.close()

    def end_control_first(self) -> None:
        """Delete the process's control queues before other exit hooks run, when it ends or restarts."""
        if self.options.remote_control:
            self.control.close_first()

    def is_broadcast(self, queue: str, exchange: str | None) -> bool:
        """Whether a message in that queue came by a fanout exchange. Makes no request."""
        return self.options.supports_fanout and self.fanout.is_subscribed(queue, exchange)

    def delete_temporary_queue(self, name: str) -> None:
        """Delete a queue that this process created, with its subscriptions. Errors are logged."""
        if self.options.supports_fanout:
            self.fanout.unsubscribe(name)
        self.temporary_queues.delete(name)

    def end_broadcasts(self) -> None:
        """Delete the queues of the worker's `Broadcast`s, which nobody else uses, once nothing runs."""
        for name in self.temporary_queues.of_broadcasts():
            self.receiving.abandon(name)
            self.delete_temporary_queue(name)

    def receive_options_of(self, queue: str) -> ReceiveOptions:
        """The parameters of one receive from a queue, by Celery's name of it."""
        return replace(
            self.receive_options, visibility_timeout=self.options.for_queue(queue).visibility_timeout
        )

    def publish_attempts(self, connection: Any) -> PublishAttempts:
        """The object that counts a kombu Connection's attempts to publish."""
        known = self._publish_attempts.get(connection)
        return known or self._publish_attempts.setdefault(connection, PublishAttempts(connection))


def shared_context(given: Mapping[str, Any], broker: BrokerURL, options: Options) -> BrokerContext:
    """The context of a broker, the same for equal settings in the same process. Any thread.

    `given` are the transport options as the user wrote them.
    """
    # Ignore options that kombu adds to few connections, when it publishes with a retry policy.
    ours = {name: v for name, v in given.items() if name not in KOMBU_OPTIONS}
    key = os.getpid(), repr((broker, broker.password, sorted(ours.items(), key=repr)))
    with _lock:
        context = _contexts.get(key)
        if context is None:
            context = _contexts[key] = BrokerContext(broker, options)
    return _kept(context)


@lru_cache(KEPT_CONTEXTS)
def _kept(context: BrokerContext) -> BrokerContext:
    """Return the context, after marking it as recently used."""
    return context


def _new_sender(missing: Callable[[str], None], outgoing: OutgoingMessages) -> Sender:
    """A sender for a block of `publish_batch`. Imported lazily, because most publications are not in one."""
    from celery_sqs_visibility.delivery.publish.sender import Sender  # noqa: PLC0415

    return Sender(missing, outgoing)


def _finds_dead_letters(queues: Queues, options: Options, queue: str) -> Callable[[], Queue] | None:
    letters = options.for_queue(queue).dead_letter_queue
    return partial(queues.find_or_create, letters) if letters else None


def _wanted_attributes(wanted: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The system and custom attributes in `fetch_message_attributes`, which kombu allows in several forms."""
    if isinstance(wanted, Mapping):
        names = wanted.get("MessageSystemAttributeNames"), wanted.get("MessageAttributeNames")
    else:
        names = ((wanted,) if isinstance(wanted, str) else wanted), None
    system, custom = (tuple(each or ()) for each in names)
    return _all_or_these(system), _all_or_these(custom)


def _all_or_these(names: tuple[Any, ...]) -> tuple[str, ...]:
    return ("All",) if any(str(name).lower() == "all" for name in names) else tuple(sorted(set(names)))
