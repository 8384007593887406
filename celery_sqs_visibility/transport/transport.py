"""kombu's Transport on SQS: a connection."""

from __future__ import annotations

import math
import os
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kombu import pools
from kombu.transport import virtual
from kombu.utils.url import safequote

from celery_sqs_visibility.aws.process_lock import shared_property
from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.delivery.publish.retries import RETRIED_ERRORS, until_deadline
from celery_sqs_visibility.errors import PASSING_ERRORS, CommandNotSentError, OptionError, SQSError
from celery_sqs_visibility.policy.backoff import retry_interval
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import BrokerContext, shared_context
from celery_sqs_visibility.transport.channel import Channel
from celery_sqs_visibility.transport.connection_settings import (
    BrokerURL,
    note_accepted,
    options_as_written,
)

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.receive.buffer import Buffer

#: The default of `broker_pool_limit` (celery/app/defaults.py) and of kombu. It limits the sockets to a
#: broker: an eleventh thread waits until one of ten has published. A connection to SQS has no socket of its
#: own, and threads that publish at the same time share requests, so this default only costs time.
CELERYS_POOL_LIMIT: Final = 10

#: The number of sockets to SQS: see `aws.client_factory.POOL_CONNECTIONS`.
POOL_LIMIT: Final = 64


class Transport(virtual.Transport):
    """`broker_transport = "celery_sqs_visibility"`.

    Raises:
        OptionError: `broker_transport_options` or `broker_url` is invalid; the message says how.
    """

    Channel = Channel
    driver_type = "sqs"
    driver_name = "celery_sqs_visibility"
    default_port = None
    #: kombu leaves parsing the URL to `BrokerURL`, and passes it as the Connection's `hostname`.
    can_parse_url = True
    #: Without "localhost" for a URL without a host, which would be taken for an endpoint.
    default_connection_params: ClassVar[dict[str, Any]] = {}
    #: In a Celery worker, exceptions of callbacks are logged; consumers of kombu's own stop by raising.
    for_worker = False
    polling_interval = None
    #: Errors that pass. Consuming never raises them.
    connection_errors = (*virtual.Transport.connection_errors, *PASSING_ERRORS, CommandNotSentError, OSError)
    channel_errors = (*virtual.Transport.channel_errors, SQSError)
    #: kombu retries a publication after these, as often as the retry policy says. A refusal is raised at
    #: once.
    recoverable_connection_errors = (*virtual.Transport.connection_errors, *RETRIED_ERRORS, OSError)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=frozenset(["direct"]))
    client: Any

    def __init__(self, client: Any, **kwargs: Any) -> None:
        try:
            self.broker = BrokerURL.of(client)
            written = options_as_written(client.transport_options)
            client.transport_options = {**written, **dict(self.broker.options)}
            self.options = Options.parse(client.transport_options)
            note_accepted(client.transport_options)
        except OptionError as error:
            raise shown_in_one_line(error) from None
        # kombu did not parse the URL, and shows a connection's host in many places.
        broker = self.broker
        client.hostname, client.port = broker.host, broker.port
        client.userid, client.password = broker.userid, broker.password
        super().__init__(client, **kwargs)
        if self.options.remote_control:
            # Celery's step `Control` requires fanout. Other exchanges of that type are refused when declared.
            types = frozenset(["direct", "fanout", "topic"])
            self.implements = self.implements.extend(exchange_type=types)
        self._loop: Any = None
        self._find_context = partial(shared_context, dict(client.transport_options), broker, self.options)
        self._context: BrokerContext | None = None

    def driver_version(self) -> str:
        """The package's version, for `celery report`."""
        return version("celery_sqs_visibility")

    def as_uri(self, uri: str | None, include_password: bool = False, mask: str = "**") -> str:  # noqa: ARG002, FBT001, FBT002 - kombu's
        """The region or endpoint of this connection, for banners and logs: `sqs://eu-west-1`. No request.

        With the password it is a URL to connect with.
        """
        if include_password:
            return self.broker.with_secret()
        key = f"{safequote(self.broker.userid)}:{mask}@" if self.broker.userid else ""
        try:
            places = sorted(map(str, self.context.queues.locations()))
        except SQSError:  # the settings are invalid, and the first request says so
            places = []
        return f"sqs://{key}{','.join(places)}"

    @property
    def context(self) -> BrokerContext:
        """What connections of this process share. A forked child has its own. Any thread."""
        context = self._context  # another thread may close the connection meanwhile
        if context is None or context.pid != os.getpid():
            context = self._context = self._find_context()
        return context

    @shared_property
    def buffer(self) -> Buffer:
        """The messages for this connection's consumers. Created lazily, because producers receive none."""
        from celery_sqs_visibility.delivery.receive.buffer import Buffer  # noqa: PLC0415

        return Buffer(looped_at=SYSTEM_CLOCK.monotonic())

    def establish_connection(self) -> Any:
        """Connect without a request. Before a retry of a publication, first wait for its policy's interval.

        kombu reconnects before each retry, but waits only between failed attempts to connect
        (kombu/connection.py: `Connection.ensure`).

        Raises:
            UnreachableError: SQS's endpoint refuses connections.
            SQSError: the settings are invalid.
        """
        failed = self.context.publish_attempts(self.client).failed
        if failed:
            sleep(retry_interval(self.client.transport_options, failed))
        until_deadline(self.context.queues.reach)
        raise_default_limit(Transport)
        return super().establish_connection()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's
        """Let the event loop deliver messages as they arrive (Celery's `Consumer.connect`)."""
        self._loop = loop
        loop.add_reader(self.buffer.fileno(), self._on_arrival)
        loop.on_tick.add(self._note_loop)

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ARG002 - kombu's
        """Deliver messages that arrive within `timeout` seconds, if there is no event loop.

        A callback's exception is raised, except in a Celery worker.

        Raises:
            TimeoutError: nothing arrived (Celery expects it under its old name, `socket.timeout`).
        """
        self._note_loop()
        self._raise_prefetch_counts()
        until = math.inf if timeout is None else SYSTEM_CLOCK.monotonic() + timeout
        while self.buffer.wait(_until(until)):
            if not self.buffer.callbacks:
                self.buffer.dispatch(SYSTEM_CLOCK, raising=not self.for_worker)
                return
            if self.buffer.run_callback():  # one reply a call: see `_collect` of kombu/pidbox.py
                return
        raise TimeoutError("no message arrived")

    def close_connection(self, connection: Any) -> None:
        """Close the channels, leave the event loop, and drop the context."""
        if self._loop is not None:
            self._loop.on_tick.discard(self._note_loop)
            descriptor = self.buffer.fileno()
            if descriptor in self._loop.readers:
                self._loop.remove(descriptor)
            self._loop = None
        super().close_connection(connection)
        if "buffer" in vars(self):
            self.buffer.close()
        self._context = None

    def _note_loop(self) -> None:
        self.buffer.looped_at = SYSTEM_CLOCK.monotonic()

    def _on_arrival(self) -> None:
        self.buffer.on_readable(SYSTEM_CLOCK, raising=not self.for_worker)
        self._raise_prefetch_counts()

    def _raise_prefetch_counts(self) -> None:
        channels: list[Any] | None = self.channels
        for channel in channels or ():
            channel.raise_prefetch_count()


def raise_default_limit(transport: type[virtual.Transport]) -> None:
    """Raise the default limit of kombu's pools for that transport. Other limits are the user's choice.

    Any thread. Idempotent.
    """
    for producers in tuple(pools.producers.values()):
        connections = producers.connections
        ours = connections.connection.get_transport_cls() is transport
        if ours and connections.limit == producers.limit == CELERYS_POOL_LIMIT:
            connections.limit = producers.limit = POOL_LIMIT


def _until(instant: float) -> float | None:
    """Seconds from now to the instant, at least 0; `None` for infinity."""
    return None if instant == math.inf else max(0.0, instant - SYSTEM_CLOCK.monotonic())
