"""The part that all connections of a process to one broker share."""

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

#: Contexts that are kept when nothing uses them: those that connections have asked for last.
KEPT_CONTEXTS: Final = 8

_lock = ProcessLock()  # guards _contexts
_contexts: MutableMapping[tuple[int, str], BrokerContext] = WeakValueDictionary()

#: Those of the processes that this one was forked from. They are never collected, since locks around their
#: sockets may be held by threads that this process does not have.
_inherited: Final[list[BrokerContext]] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_contexts.values()))


class BrokerContext:
    """The queues of one broker, as one process sees them, with all that it knows of them.

    Open connections keep it, and consumers that hold messages. It is in no cycle of references, so that its
    sockets are closed as soon as nobody keeps it.

    Attributes:
        outgoing: sends messages of any size.
        send: sends one that is published by itself; concurrent ones share requests.
        new_sender: makes a sender of those that are published in a block.
        payloads: where large payloads go; `None`: nowhere.
        worker_name: Celery's name of this node; a bootstep sets it. Empty in a client.
        attribute_names: the message attributes that tasks see.
        release_keys: releases the keys of exclusive tasks that run; a bootstep sets it where there are any.
        on_remote_shutdown: ends the worker, for the command `shutdown`; a bootstep sets it.
        client_settings: the settings of SQS's clients.
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
        # All message attributes: a dead letter keeps those of its sender, and they cost no request.
        self.receive_options = ReceiveOptions(options.visibility_timeout, system, ("All",))
        self.attribute_names = custom
        self._publish_attempts: WeakKeyDictionary[Any, PublishAttempts] = WeakKeyDictionary()
        self.redrive = RedriveBook(partial(_finds_dead_letters, self.queues, options))
        self.worker_name = ""
        self.release_keys: Callable[[], None] | None = None
        self.on_remote_shutdown: Callable[[], None] | None = None

    @shared_property
    def pump(self) -> Pump:
        """Makes the requests that no caller waits for. Imported when first needed: producers make none."""
        from celery_sqs_visibility.delivery.pump import Pump  # noqa: PLC0415

        return Pump()

    @shared_property
    def receiving(self) -> Receiving:
        """The consumers and what they hold. Imported when first needed: producers receive nothing."""
        from celery_sqs_visibility.transport.receiving import Receiving  # noqa: PLC0415

        return Receiving(self.options, self.receive_options, self.redrive, self.pump, self.outgoing)

    @shared_property
    def decode_message(self) -> DecodeMessage:
        """Reads what is received, by `codec.decode_message`. Imported when first needed, as `receiving`."""
        from celery_sqs_visibility.transport.codec import decode_message  # noqa: PLC0415

        return partial(decode_message, attribute_names=self.attribute_names)

    @shared_property
    def decode_for_worker(self) -> DecodeMessage:
        """The same for a worker; a bootstep sets it where tasks take messages of AWS events."""
        return self.decode_message

    @shared_property
    def decode_any_message(self) -> partial[DecodedMessage]:
        """The same for consumers that are not Celery's, by `codec.decode_any_message`."""
        from celery_sqs_visibility.transport.codec import decode_any_message  # noqa: PLC0415

        return partial(decode_any_message, attribute_names=self.attribute_names)

    def new_queue_consumer(self, buffer: Buffer, *, for_worker: bool) -> QueueConsumer:
        """Make a consumer: the worker's, or one without slots."""
        self.receiving.holder.dead_letters.worker_name = self.worker_name
        return self.receiving.new_queue_consumer(
            buffer,
            self.decode_for_worker if for_worker else self.decode_message,
            partial(self._consumers_beside, for_worker=for_worker),
            for_worker=for_worker,
        )

    def _consumers_beside(self, *, for_worker: bool) -> list[QueueConsumer]:
        """The consumers that may take the messages of a consumer's last polls.

        A consumer's reference to this method keeps the context while the consumer holds a message.
        """
        return snapshot(self.receiving.worker_queue_consumers) if for_worker else []

    def delay_limits(self, queue: Queue) -> DelayLimits:
        """The bounds of a message's wait in the queue, as far as they are known. Any thread, no request."""
        stated = stated_retention(self.options.sqs_creation_attributes)
        options = self.options.for_queue(queue.name)
        retention = self.redrive.known_retention(queue) or stated
        return DelayLimits(options.polling_interval_max, retention, options.visibility_timeout)

    @shared_property
    def coordination_store(self) -> GuardedStore | None:
        """The store by which processes agree, as on exclusive tasks; `None` without the option. No request.

        Raises:
            OptionError: it cannot be opened.
        """
        if self.options.coordination_store is None:
            return None
        from celery_sqs_visibility.stores.guarded import GuardedStore, open_store  # noqa: PLC0415 - few need it

        store = open_store(self.options.coordination_store, self.client_settings)
        return GuardedStore(store, start_thread, prefix=self.options.queue_name_prefix)

    @shared_property
    def fanout(self) -> Fanout:
        """The fanout exchanges. Imported when first needed: most apps have none."""
        from celery_sqs_visibility.transport.fanout import Fanout, topics_of  # noqa: PLC0415

        return Fanout(topics_of(self.client_settings, self.options), self.queues)

    @shared_property
    def control(self) -> RemoteControl:
        """Remote control. Imported when first needed: it is off by default."""
        from celery_sqs_visibility.control.remote import RemoteControl  # noqa: PLC0415

        return RemoteControl(
            self.queues.sqs,
            self.options,
            in_worker=lambda: bool(self.worker_name),
            use_here=use_here,
            pump=self.pump,
        )

    def end_control(self) -> None:
        """The process is about to be ended: delete its control queues."""
        if self.options.remote_control:
            self.control.close()

    def end_control_first(self) -> None:
        """The process ends, or is made anew: delete its control queues before other exit hooks run."""
        if self.options.remote_control:
            self.control.close_first()

    def is_broadcast(self, queue: str, exchange: str | None) -> bool:
        """Whether a message of that queue came by a fanout exchange. No request."""
        return self.options.supports_fanout and self.fanout.is_subscribed(queue, exchange)

    def delete_temporary_queue(self, name: str) -> None:
        """Delete a queue that this process created, with its subscriptions. Errors are logged."""
        if self.options.supports_fanout:
            self.fanout.unsubscribe(name)
        self.temporary_queues.delete(name)

    def end_broadcasts(self) -> None:
        """The worker ends, nothing runs: delete the queues of its `Broadcast`s, which are nobody else's."""
        for name in self.temporary_queues.of_broadcasts():
            self.receiving.abandon(name)
            self.delete_temporary_queue(name)

    def receive_options_of(self, queue: str) -> ReceiveOptions:
        """For one receive from a queue, by Celery's name of it."""
        return replace(
            self.receive_options, visibility_timeout=self.options.for_queue(queue).visibility_timeout
        )

    def publish_attempts(self, connection: Any) -> PublishAttempts:
        """The attempts of a kombu Connection so far."""
        known = self._publish_attempts.get(connection)
        return known or self._publish_attempts.setdefault(connection, PublishAttempts(connection))


def shared_context(given: Mapping[str, Any], broker: BrokerURL, options: Options) -> BrokerContext:
    """The context of a broker, the same for equal settings in the same process. Any thread.

    `given` are the transport options as the user wrote them.
    """
    # Without the options that kombu adds when it publishes with a retry policy: few connections have them.
    ours = {name: v for name, v in given.items() if name not in KOMBU_OPTIONS}
    key = os.getpid(), repr((broker, broker.password, sorted(ours.items(), key=repr)))
    with _lock:
        context = _contexts.get(key)
        if context is None:
            context = _contexts[key] = BrokerContext(broker, options)
    return _kept(context)


@lru_cache(KEPT_CONTEXTS)
def _kept(context: BrokerContext) -> BrokerContext:
    """Return the context, which is kept until those of as many other brokers were used."""
    return context


def _new_sender(missing: Callable[[str], None], outgoing: OutgoingMessages) -> Sender:
    """A sender for a block of `publish_batch`, in which most publications are not."""
    from celery_sqs_visibility.delivery.publish.sender import Sender  # noqa: PLC0415

    return Sender(missing, outgoing)


def _finds_dead_letters(queues: Queues, options: Options, queue: str) -> Callable[[], Queue] | None:
    letters = options.for_queue(queue).dead_letter_queue
    return partial(queues.find_or_create, letters) if letters else None


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
