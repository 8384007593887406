"""kombu's Transport on SQS: a connection, which has a broker and hands over what arrives from it."""

from __future__ import annotations

import os
import threading
from importlib.metadata import version
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from kombu.transport import virtual

from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.errors import PASSING_ERRORS, SQSError
from celery_sqs_visibility.policy.backoff import retry_interval
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import BrokerContext, shared_broker
from celery_sqs_visibility.transport.channel import RETRIED, Attempts, Channel

#: By kombu's Connection, which makes a new Transport and a new Channel before each retry of a publication.
_attempts: WeakKeyDictionary[Any, Attempts] = WeakKeyDictionary()


class Transport(virtual.Transport):
    """`broker_transport = "celery_sqs_visibility"`.

    Raises:
        OptionError: `broker_transport_options` are wrong; the message says how.
    """

    Channel = Channel
    driver_type = "sqs"
    driver_name = "celery_sqs_visibility"
    default_port = None
    #: No "localhost" where the URL names no host: it would be taken for an endpoint, and warned of.
    default_connection_params: ClassVar[dict[str, Any]] = {}
    #: Whether a Celery worker consumes here (`start.QueuesFirst`), which no consumer's exception may
    #: end. kombu's own consumers stop by raising.
    for_worker = False
    polling_interval = None
    #: Errors that pass. Consuming never raises them.
    connection_errors = (*virtual.Transport.connection_errors, *PASSING_ERRORS, OSError)
    channel_errors = (*virtual.Transport.channel_errors, SQSError)
    #: What kombu publishes again after, as often as the retry policy says. A refusal raises at once.
    recoverable_connection_errors = (*virtual.Transport.connection_errors, *RETRIED, OSError)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct"]),
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self.options = Options.parse(client.transport_options)
        super().__init__(client, **kwargs)
        self._loop: Any = None
        self._broker: BrokerContext | None = None
        self.buffer = Buffer()
        self.attempts = _attempts.setdefault(client, Attempts())

    def driver_version(self) -> str:
        """The package's version, for `celery report`."""
        return version("celery_sqs_visibility")

    @property
    def broker(self) -> BrokerContext:
        """What this connection shares with others. A forked child has its own."""
        if self._broker is None or self._broker.pid != os.getpid():
            self._broker = shared_broker(self.client, self.options)
        return self._broker

    def establish_connection(self) -> Any:
        """Connect, which takes no request; before a retry of a publication, after its policy's interval.

        kombu connects anew before each retry, and applies the intervals to attempts to connect
        (kombu/connection.py: `Connection.ensure`). Those always work here, so this is where to wait.
        """
        if self.attempts.failed:
            policy = self.client.transport_options  # type: ignore[union-attr]
            threading.Event().wait(retry_interval(policy, self.attempts.failed))
        return super().establish_connection()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's
        """Have the event loop hand over what arrives (Celery's `Consumer.connect`)."""
        self._loop = loop
        loop.add_reader(self.buffer.fileno(), self._on_arrival)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002 - kombu's
        """Hand over what arrives within `timeout` seconds, where there is no event loop.

        An exception in a consumer's callback leaves it, but in a Celery worker.

        Raises:
            TimeoutError: nothing arrived (Celery expects it under its old name, `socket.timeout`).
        """
        self._make_room()
        if not self.buffer.wait(timeout):
            raise TimeoutError("no message arrived")
        self.buffer.dispatch(SYSTEM_CLOCK, raising=not self.for_worker)

    def close_connection(self, connection: Any) -> None:
        """Close the channels; the event loop no longer watches for messages."""
        if self._loop is not None:
            descriptor = self.buffer.fileno()
            if descriptor in self._loop.readers:
                self._loop.remove(descriptor)
            self._loop = None
        super().close_connection(connection)
        self.buffer.close()

    def _on_arrival(self) -> None:
        self.buffer.woken()
        self.buffer.dispatch(SYSTEM_CLOCK, raising=not self.for_worker)
        self._make_room()

    def _make_room(self) -> None:
        channels: list[Channel] = self.channels  # type: ignore[assignment]
        for channel in channels:
            channel.make_room()
