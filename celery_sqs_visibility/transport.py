"""kombu's Transport on SQS: a connection, which has a broker and hands over what arrives from it."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any, ClassVar

from kombu.transport import virtual

from celery_sqs_visibility.aws.errors import NotFromSQS, OverLimit, SQSError, Throttled, Unavailable
from celery_sqs_visibility.broker import Broker, shared_broker
from celery_sqs_visibility.channel import Channel
from celery_sqs_visibility.delivery.inbox import Inbox
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.options import Options


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
    polling_interval = None
    #: Errors that pass: Celery retries to publish, and to start. Consuming never raises them.
    connection_errors = (
        *virtual.Transport.connection_errors,
        Unavailable,
        NotFromSQS,
        Throttled,
        OverLimit,
        OSError,
    )
    channel_errors = (*virtual.Transport.channel_errors, SQSError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct"]),
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self.options = Options.parse(client.transport_options)
        super().__init__(client, **kwargs)
        self._loop: Any = None
        self._broker: Broker | None = None
        self.inbox = Inbox()

    def driver_version(self) -> str:
        """The package's version, for `celery report`."""
        return version("celery_sqs_visibility")

    @property
    def broker(self) -> Broker:
        """What this connection shares with others. A forked child has its own."""
        if self._broker is None or self._broker.pid != os.getpid():
            self._broker = shared_broker(self.client, self.options)
        return self._broker

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's
        """Have the event loop hand over what arrives (Celery's `Consumer.connect`)."""
        self._loop = loop
        loop.add_reader(self.inbox.fileno(), self._on_arrival)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002 - kombu's
        """Hand over what arrives within `timeout` seconds, where there is no event loop.

        Raises:
            TimeoutError: nothing arrived (Celery expects it under its old name, `socket.timeout`).
        """
        if not self.inbox.wait(timeout):
            raise TimeoutError("no message arrived")
        self.inbox.hand_over(SYSTEM_CLOCK)

    def close_connection(self, connection: Any) -> None:
        """Close the channels; the event loop no longer watches for messages."""
        if self._loop is not None:
            descriptor = self.inbox.fileno()
            if descriptor in self._loop.readers:
                self._loop.remove(descriptor)
            self._loop = None
        super().close_connection(connection)
        self.inbox.close()

    def _on_arrival(self) -> None:
        self.inbox.woken()
        self.inbox.hand_over(SYSTEM_CLOCK)
