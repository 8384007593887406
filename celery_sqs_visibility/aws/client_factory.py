"""Makes boto3's clients.

Importing this module is cheap. boto3 takes 0.1 s to import and comes in with the first client: producers
import the package in processes that may never send anything. Functions therefore import botocore inside.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import socket
from enum import Enum, unique
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.process_lock import SESSIONS
from celery_sqs_visibility.aws.roles import assume_role
from celery_sqs_visibility.contacts.botocore import add_socket_options
from celery_sqs_visibility.errors import RequestRefusedError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.loaders import Loader
    from botocore.session import Session as BotocoreSession
    from types_boto3_s3 import S3Client
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient

    from celery_sqs_visibility.aws.client_settings import ClientSettings

logger = logging.getLogger(__name__)

#: Where kombu's SQS transport goes when nothing names a region.
DEFAULT_REGION: Final = "us-east-1"

#: The Config options that concern the network, and so STS as well.
NETWORK_OPTIONS: Final = frozenset(
    {"proxies", "proxies_config", "client_cert", "use_fips_endpoint", "use_dualstack_endpoint"}
)

#: Connections that a client keeps open; botocore's 10 are fewer than receivers and settlers may need at once.
POOL_CONNECTIONS: Final = 64

#: Seconds to establish a connection: enough to repeat the first packet once.
CONNECT_SECONDS: Final = 3

#: Seconds of silence until the kernel probes a connection, seconds between probes, and the number of probes
#: without an answer until the connection is dead.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}

#: A poll is short if it waits no longer than this many seconds at SQS.
SHORT_WAIT_SECONDS: Final = 1


@unique
class Purpose(Enum):
    """The use of a client, with the seconds that it waits for an answer and the reason for its retries."""

    #: Long polls. One attempt: the receiver's loop retries, and knows the error.
    RECEIVE = WAIT_TIME_SECONDS + 10
    #: Short polls. As long polls, but one without an answer is soon over.
    SHORT_POLL = SHORT_WAIT_SECONDS + 5
    #: Deletes, visibility changes, look-ups. One attempt: the settler retries by entry, and needs time for
    #: another try before a deadline passes.
    SETTLE = 4
    #: Extensions of messages that come back within seconds. One attempt: the heartbeat retries, and a request
    #: that hangs must leave the time for that.
    EXTEND_SOON = 1.5
    #: Sending and creating. One attempt: kombu retries, four times by Celery's default, and a caller waits.
    PUBLISH = 5
    #: Sending in batches. One attempt: the sender retries by entry. A batch that is cut off is sent twice.
    PUBLISH_BATCH = 10
    #: Payloads in S3. One attempt: the loops that fetch and remove them retry, as do those that publish.
    PAYLOAD = 8

    @property
    def read_seconds(self) -> float:
        """Seconds to wait for an answer."""
        return float(self.value)


@overload
def new_client(settings: ClientSettings, purpose: Purpose) -> SQSClient: ...
@overload
def new_client(settings: ClientSettings, purpose: Purpose, service: Literal["s3"]) -> S3Client: ...
@overload
def new_client(settings: ClientSettings, purpose: Purpose, service: Literal["sns"]) -> SNSClient: ...
@overload
def new_client(settings: ClientSettings, purpose: Purpose, service: Literal["cloudwatch"]) -> Any: ...
def new_client(settings: ClientSettings, purpose: Purpose, service: Any = "sqs") -> Any:
    """Make a client, with a session of its own. The client may be shared by threads, not by processes.

    The endpoint of the settings is not that of S3 or CloudWatch. Any thread. No request is made, but boto3's
    search for credentials may ask the instance's metadata service.

    Raises:
        Exception: boto3's, about the settings; `error_codes.translate` knows them.
    """
    with SESSIONS:
        base = _botocore_session()
        session, configured = open_session(settings, base)
        region = configured or DEFAULT_REGION
        client = session.client(
            service,
            region_name=region,
            endpoint_url=settings.endpoint_url if service in {"sqs", "sns"} else None,
            use_ssl=settings.use_ssl,
            config=_config(settings, purpose, base.get_config_variable("user_agent_appid")),
        )
    if service == "sqs" and not configured and Location(region, client.meta.endpoint_url).is_amazons:
        _warn_of_default_region()
    add_socket_options(client, _keepalive_options())
    return client


def open_session(settings: ClientSettings, base: BotocoreSession | None = None) -> tuple[Session, str | None]:
    """Return a session with the credentials of the settings, and the configured region. Under SESSIONS."""
    import boto3.session  # noqa: PLC0415

    session = boto3.session.Session(
        botocore_session=base or _botocore_session(),
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret_access_key,
        aws_session_token=settings.session_token,
    )
    region = settings.region or session.region_name or os.environ.get("AWS_REGION")
    if settings.role_arn:
        assumed = _botocore_session()
        assume_role(session, assumed, settings, region or DEFAULT_REGION, network_options(settings))
        session = boto3.session.Session(botocore_session=assumed)
    return session, region


def unknown_region(client: SQSClient) -> RequestRefusedError | None:
    """Return an error if botocore does not know the client's region and made up its endpoint from the name.

    A region may be newer than botocore, so ask only where SQS never answered.
    """
    region = client.meta.region_name
    with SESSIONS:
        session = _botocore_session()
        partitions = session.get_available_partitions()
        known = {name for each in partitions for name in session.get_available_regions("sqs", each)}
    if region in known or f".{region}." not in client.meta.endpoint_url:
        return None
    nearest = difflib.get_close_matches(region, sorted(known), n=1, cutoff=0.0)[0]
    return RequestRefusedError(
        f"{client.meta.endpoint_url} cannot be reached and botocore knows no region {region!r}. "
        f"The nearest is {nearest!r}.",
        code="UnknownRegionError",
    )


def network_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the Config options about the network, which clients of other services need, too."""
    options = settings.config_options()
    return {name: options[name] for name in NETWORK_OPTIONS & options.keys()}


@functools.cache  # once a process; a pool's child has heard it from its parent
def _warn_of_default_region() -> None:
    """Say that the region is a guess. Not for an emulator's endpoint, for which any region is as good."""
    log_safely(
        logger.warning,
        "no AWS region is configured: queues are looked for in %s, as kombu's SQS transport does; set the "
        "transport option 'region', AWS_DEFAULT_REGION, or the region of the AWS profile",
        DEFAULT_REGION,
    )


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """Return what reads and keeps botocore's descriptions of services."""
    from botocore.loaders import create_loader  # noqa: PLC0415

    return create_loader(data_path)


def _botocore_session() -> BotocoreSession:
    """Return a session that shares its loader: later clients then take a tenth of the time to make."""
    from botocore.session import get_session  # noqa: PLC0415

    session = get_session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


def _keepalive_options() -> list[tuple[int, int, int]]:
    """Socket options that make the kernel probe the silent connections of long polls; none where it cannot.

    botocore's `tcp_keepalive` probes after two hours, and has no setting for less.
    """
    return [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in KEEPALIVE.items()
        if hasattr(socket, name)
    ]


def _config(settings: ClientSettings, purpose: Purpose, app_id: str | None) -> Config:
    """Merge the user's options with ours. Theirs win, except where our own loops depend on a value.

    `app_id` is what the environment or a profile adds to the user agent.
    """
    from botocore.config import Config  # noqa: PLC0415

    users = settings.config_options()
    options = {"connect_timeout": CONNECT_SECONDS, "read_timeout": purpose.read_seconds, **users}
    if purpose is not Purpose.PUBLISH or "retries" not in users:
        # Not the user's: a hidden second attempt would outlast the deadline that our loops retry against. The
        # mode, too: "adaptive", which may be set for the whole machine, slows a client down after a throttled
        # answer, and looks at botocore's own attempts to speed it up again.
        options["retries"] = {"total_max_attempts": 1, "mode": "standard"}
    if purpose is Purpose.RECEIVE:
        # Not less: a poll cut off by the client still takes messages, and nobody gets them. Not `None`, which
        # means for ever: threads would hang on connections that died silently.
        options["read_timeout"] = max(options["read_timeout"] or 0, purpose.read_seconds)
    if purpose is Purpose.SHORT_POLL:
        # Not more: while nothing answers, threads that hang accumulate for as long.
        options["read_timeout"] = purpose.read_seconds
    if purpose is Purpose.EXTEND_SOON:
        # Not more either, or the message comes back before the next try.
        options["connect_timeout"] = options["read_timeout"] = purpose.read_seconds
    options["max_pool_connections"] = max(users.get("max_pool_connections") or 0, POOL_CONNECTIONS)
    options["tcp_keepalive"] = True
    options["parameter_validation"] = False  # costs CPU on every call, and our calls have few shapes
    agent = f"celery_sqs_visibility/{_version()}"
    options["user_agent_extra"] = " ".join(filter(None, (users.get("user_agent_extra"), agent)))
    if not (app_id or users.keys() & {"user_agent", "user_agent_appid"}):
        # botocore would put its own together twice a request, which takes a seventh of a request's CPU time.
        options["user_agent"] = f"Boto3/{metadata.version('boto3')}"
    return Config(**options)


def _version() -> str:
    try:
        return metadata.version("celery_sqs_visibility")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0"
