"""kombu's Transport on SQS: one connection's options, credentials and directory of queues."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kombu.transport import virtual

from celery_sqs_visibility.aws.access import shared_sqs
from celery_sqs_visibility.aws.clients import ClientSettings, frozen_config
from celery_sqs_visibility.aws.errors import CredentialsRefused, OverLimit, SQSError, Throttled, Unavailable
from celery_sqs_visibility.aws.forks import ProcessLock
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import PredefinedQueue, Queues
from celery_sqs_visibility.channel import Channel
from celery_sqs_visibility.delivery.depot import Depot
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.envelope import open_message
from celery_sqs_visibility.policy.options import Options

#: What every receive asks for: how often it was received before, and when first.
SYSTEM_ATTRIBUTES = ("ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount")

#: Without a host in broker_url kombu fills in the transport's default, or "localhost": nobody's wish.
NO_HOST = "aws"
NO_ENDPOINT = (NO_HOST, "localhost")

_lock = ProcessLock()  # guards _brokers
_brokers: dict[tuple[int, str], Broker] = {}


class Broker:
    """What the connections of one process to one broker share, and what outlives them.

    A delivery whose connection was lost and made anew is still held, extended and settled.
    """

    def __init__(self, client: Any, options: Options) -> None:
        self.pid = os.getpid()
        self.options = options
        self.receive_options = receive_options(options)
        self.queues = _queues(client, options)
        self._depot: Depot | None = None

    @property
    def depot(self) -> Depot:
        """What this process holds. Made when first needed, which is by a consumer: producers hold nothing."""
        if self._depot is None:
            with _lock:
                self._depot = self._depot or Depot(self.options, self.receive_options, open_message)
        return self._depot

    def delivery(self, delivery_tag: str) -> Delivery | None:
        """The delivery of that tag, if it is held. Any thread."""
        return self._depot.ledger.get(delivery_tag) if self._depot else None


def _shared_broker(client: Any, options: Options) -> Broker:
    settings = (client.hostname, client.port, client.userid, client.password)
    key = os.getpid(), repr((settings, sorted(client.transport_options.items(), key=repr)))
    with _lock:
        if key not in _brokers:
            _brokers[key] = Broker(client, options)
        return _brokers[key]


class Transport(virtual.Transport):
    """`broker_transport = "celery_sqs_visibility"`.

    Raises:
        OptionError: `broker_transport_options` are wrong; the message says how.
    """

    Channel = Channel
    driver_type = "sqs"
    driver_name = "celery_sqs_visibility"
    default_port = None
    default_connection_params = {"hostname": NO_HOST}  # noqa: RUF012 - kombu's own way of saying it
    polling_interval = None
    #: Errors that pass: Celery retries to publish, and to start. Consuming never raises them.
    connection_errors = (*virtual.Transport.connection_errors, Unavailable, Throttled, OverLimit, OSError)
    channel_errors = (*virtual.Transport.channel_errors, SQSError, CredentialsRefused)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct"]),
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self.options = Options.parse(client.transport_options)
        super().__init__(client, **kwargs)
        self._loop: Any = None
        self._broker: Broker | None = None

    def driver_version(self) -> str:
        """The package's version."""
        from celery_sqs_visibility import __version__  # noqa: PLC0415 - the face is above us

        return __version__

    @property
    def broker(self) -> Broker:
        """What this connection shares with others. A forked child has its own."""
        if self._broker is None or self._broker.pid != os.getpid():
            self._broker = _shared_broker(self.client, self.options)
        return self._broker

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's
        """Have the event loop hand over what arrives (Celery's `Consumer.connect`)."""
        self._loop = loop
        loop.add_reader(self.broker.depot.inbox.fileno(), self._on_arrival)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002 - kombu's
        """Hand over what arrives within `timeout` seconds, where there is no event loop.

        Raises:
            TimeoutError: nothing arrived (Celery expects it under its old name, `socket.timeout`).
        """
        if not self.broker.depot.inbox.wait(timeout):
            raise TimeoutError("no message arrived")
        self.broker.depot.hand_over()

    def close_connection(self, connection: Any) -> None:
        """Close the channels; the event loop no longer watches for messages."""
        if self._loop is not None:
            descriptor = self.broker.depot.inbox.fileno()
            if descriptor in self._loop.readers:
                self._loop.remove(descriptor)
            self._loop = None
        super().close_connection(connection)

    def _on_arrival(self) -> None:
        depot = self.broker.depot
        depot.inbox.woken()
        depot.hand_over()


PREDEFINED_KEYS = ("url", "region", "access_key_id", "secret_access_key", "session_token")


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
    if not hostname or (hostname in NO_ENDPOINT and port is None):
        return None
    return f"{'https' if secure else 'http'}://{hostname}{f':{port}' if port else ''}"


def receive_options(options: Options) -> ReceiveOptions:
    """What every receive asks for, the user's wishes included."""
    system, custom = _wanted_attributes(options.fetch_message_attributes)
    names = ("All",) if "All" in system else tuple(sorted({*system, *SYSTEM_ATTRIBUTES}))
    return ReceiveOptions(options.visibility_timeout, names, custom)


def _wanted_attributes(wanted: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The system and the custom attributes of `fetch_message_attributes`, in kombu's several forms."""
    if isinstance(wanted, Mapping):
        system = wanted.get("MessageSystemAttributeNames") or ()
        custom = wanted.get("MessageAttributeNames") or ()
    else:
        system, custom = (wanted if isinstance(wanted, (list, tuple)) else ()), ()
    return _all_or_these(system), _all_or_these(custom)


def _all_or_these(names: Any) -> tuple[str, ...]:
    return ("All",) if any(str(name).lower() == "all" for name in names) else tuple(sorted(set(names)))
