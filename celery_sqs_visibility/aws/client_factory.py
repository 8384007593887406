"""Creates boto3 clients.

boto3 takes 0.1 s to import, and many processes import the package without ever sending anything. So functions
import boto3 and botocore when the first client is made.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import socket
from datetime import UTC, datetime
from enum import Enum, unique
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.process_lock import SESSIONS
from celery_sqs_visibility.contacts.botocore import add_socket_options
from celery_sqs_visibility.errors import RequestRefusedError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.credentials import RefreshableCredentials
    from botocore.loaders import Loader
    from botocore.session import Session as BotocoreSession
    from types_boto3_s3 import S3Client
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient

    from celery_sqs_visibility.aws.client_settings import ClientSettings

logger = logging.getLogger(__name__)

#: The default of kombu's SQS transport, too.
DEFAULT_REGION: Final = "us-east-1"

#: Connections that a client keeps open. Receivers and settlers may need more than botocore's 10 at once.
POOL_CONNECTIONS: Final = 64

#: Seconds of silence before the kernel probes a connection, seconds between probes, and the number of
#: unanswered probes after which the connection is dead.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}

#: Seconds before credentials expire at which every request waits for new ones. A renewal takes less.
RENEWAL_SECONDS: Final = 60

#: Timeout for connecting to STS, and for its answer. There is one attempt: requests to SQS wait for it, and
#: their callers retry.
STS_SECONDS: Final = 3

#: The longest wait at SQS of a short poll.
SHORT_WAIT_SECONDS: Final = 1


@unique
class ClientPurpose(Enum):
    """What a client is used for; the value is its read timeout in seconds. By default nothing is retried."""

    #: Long polls. The receiver retries.
    RECEIVE = WAIT_TIME_SECONDS + 10
    #: Short polls. The receiver retries.
    SHORT_POLL = SHORT_WAIT_SECONDS + 5
    #: Deletes, visibility changes, look-ups. The settler retries each entry, and needs time for that before
    #: the deadline.
    SETTLE = 4
    #: Extensions of messages that become visible within seconds. The heartbeat retries, and needs time for
    #: that if a request hangs.
    EXTEND_SOON = 1.5
    #: Sending and creating. kombu retries, four times by Celery's default, while the caller waits.
    PUBLISH = 5
    #: Sending in batches. The sender retries each entry. A batch that is cut off may be sent twice.
    PUBLISH_BATCH = 10
    #: Payloads in S3. The code that stores, fetches and removes them retries.
    PAYLOAD = 8

    @property
    def read_seconds(self) -> float:
        """Return the read timeout."""
        return float(self.value)


@overload
def new_client(settings: ClientSettings, purpose: ClientPurpose) -> SQSClient: ...
@overload
def new_client(settings: ClientSettings, purpose: ClientPurpose, service: Literal["s3"]) -> S3Client: ...
@overload
def new_client(settings: ClientSettings, purpose: ClientPurpose, service: Literal["sns"]) -> SNSClient: ...
@overload
def new_client(
    settings: ClientSettings, purpose: ClientPurpose, service: Literal["cloudwatch", "logs"]
) -> Any: ...
def new_client(settings: ClientSettings, purpose: ClientPurpose, service: Any = "sqs") -> Any:
    """Create a client with its own session. Threads may share the client, processes may not. Any thread.

    The endpoint in the settings applies to SQS and SNS only. Makes no request to the service, but boto3 may
    ask the instance's metadata service for credentials.

    Raises:
        Exception: boto3's, about the settings; see `error_codes.translate`.
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
    """Return a session with the credentials of the settings, and the configured region. Hold `SESSIONS`."""
    import boto3.session  # noqa: PLC0415

    session = boto3.session.Session(
        botocore_session=base or _botocore_session(),
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret_access_key,
        aws_session_token=settings.session_token,
    )
    region = settings.region or session.region_name or os.environ.get("AWS_REGION")
    if settings.role_arn:
        session = _assume_role(session, settings, region or DEFAULT_REGION)
    return session, region


def _assume_role(session: Session, settings: ClientSettings, region: str) -> Session:
    """Return a session with the role's credentials, which it fetches at its first request and renews in time.

    `session` signs the requests to STS, which is in that region.
    """
    import boto3.session  # noqa: PLC0415
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

    if session.get_credentials() is None:
        raise NoCredentialsError
    sts = session.client("sts", region_name=region, config=brief_config(settings, STS_SECONDS))
    credentials = _role_credentials(sts, settings)
    assumed = _botocore_session()
    assumed.register_component("credential_provider", SimpleNamespace(load_credentials=lambda: credentials))
    return boto3.session.Session(botocore_session=assumed)


def _role_credentials(sts: Any, settings: ClientSettings) -> RefreshableCredentials:
    from botocore.credentials import (  # noqa: PLC0415
        RefreshableCredentials,
        create_assume_role_refresher,
    )

    role = {
        "RoleArn": settings.role_arn,
        "RoleSessionName": "Celery",  # in CloudTrail, as with kombu's SQS transport
        "DurationSeconds": settings.role_seconds,
        **({"ExternalId": settings.role_external_id} if settings.role_external_id else {}),
    }
    refresh = create_assume_role_refresher(sts, role)
    advisory, mandatory = renewal_times(settings)
    # Expired from the start, so that the first request fetches them. botocore's Deferred... does so too, but
    # renews 15 minutes before the end: 15-minute credentials would be renewed at every request.
    past = datetime.fromtimestamp(0, UTC)
    return RefreshableCredentials(
        "", "", "", past, refresh, "assume-role", advisory_timeout=advisory, mandatory_timeout=mandatory
    )


def renewal_times(settings: ClientSettings) -> tuple[int, int]:
    """Return how many seconds before their end one thread renews credentials, and from when all wait."""
    buffer = settings.role_buffer_seconds if settings.role_buffer_seconds < settings.role_seconds else 0
    mandatory = max(buffer, RENEWAL_SECONDS)
    # At most half of the time left, so that fresh credentials are not due for renewal at once.
    return mandatory + min(2 * RENEWAL_SECONDS, (settings.role_seconds - mandatory) // 2), mandatory


def unknown_region(client: SQSClient) -> RequestRefusedError | None:
    """Return an error if botocore doesn't know the region and built the endpoint from its name.

    A region may be newer than botocore, so call this only if SQS has never answered.
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


def brief_config(settings: ClientSettings, seconds: float, attempts: int = 1) -> Config:
    """Return the Config of a client of STS, KMS or DynamoDB, with one timeout to connect and to be answered.

    Of the user's options those about the network apply, as to clients of all services.
    """
    from botocore.config import Config  # noqa: PLC0415

    names = {"proxies", "proxies_config", "client_cert", "use_fips_endpoint", "use_dualstack_endpoint"}
    network = {name: value for name, value in settings.config_options().items() if name in names}
    retries: Any = {"total_max_attempts": attempts, "mode": "standard"}
    return Config(**network, connect_timeout=seconds, read_timeout=seconds, retries=retries)


@functools.cache  # once a process; forked children inherit that
def _warn_of_default_region() -> None:
    """Warn that the region is a guess. Emulators take any region, so they need no warning."""
    log_safely(
        logger.warning,
        "no AWS region is configured: queues are looked for in %s, as kombu's SQS transport does; set the "
        "transport option 'region', AWS_DEFAULT_REGION, or the region of the AWS profile",
        DEFAULT_REGION,
    )


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """Return the cache of botocore's service descriptions."""
    from botocore.loaders import create_loader  # noqa: PLC0415

    return create_loader(data_path)


def _botocore_session() -> BotocoreSession:
    """Return a session with the shared loader, which makes later clients ten times as fast to create."""
    from botocore.session import get_session  # noqa: PLC0415

    session = get_session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


def _keepalive_options() -> list[tuple[int, int, int]]:
    """Return socket options that make the kernel probe silent connections, as far as the platform has them.

    botocore's `tcp_keepalive` alone probes after two hours.
    """
    return [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in KEEPALIVE.items()
        if hasattr(socket, name)
    ]


def _config(settings: ClientSettings, purpose: ClientPurpose, app_id: str | None) -> Config:
    """Merge the user's options with ours. Theirs win, except where our own loops depend on a value.

    `app_id` is the one that the environment or profile sets for the user agent.
    """
    from botocore.config import Config  # noqa: PLC0415

    users = settings.config_options()
    options = {"connect_timeout": 3, "read_timeout": purpose.read_seconds, **users}
    if purpose is not ClientPurpose.PUBLISH or "retries" not in users:
        # A hidden second attempt would outlast the deadline that our loops retry against. "adaptive", which
        # may be set for the whole machine, slows a client down after a throttled answer, and only botocore's
        # own retries speed it up again.
        options["retries"] = {"total_max_attempts": 1, "mode": "standard"}
    if purpose is ClientPurpose.RECEIVE:
        # At least this: a poll that the client aborts still receives messages, and nobody gets them. `None`
        # would let threads hang on dead connections forever.
        options["read_timeout"] = max(options["read_timeout"] or 0, purpose.read_seconds)
    if purpose is ClientPurpose.SHORT_POLL:
        # At most this: hanging threads accumulate for as long as nothing answers.
        options["read_timeout"] = purpose.read_seconds
    if purpose is ClientPurpose.EXTEND_SOON:
        # At most this, or the message becomes visible before the next attempt.
        options["connect_timeout"] = options["read_timeout"] = purpose.read_seconds
    options["max_pool_connections"] = max(users.get("max_pool_connections") or 0, POOL_CONNECTIONS)
    options["tcp_keepalive"] = True
    options["parameter_validation"] = False  # costs CPU on every call
    agent = f"celery_sqs_visibility/{_version()}"
    options["user_agent_extra"] = " ".join(filter(None, (users.get("user_agent_extra"), agent)))
    if not (app_id or users.keys() & {"user_agent", "user_agent_appid"}):
        # botocore builds its own twice per request, which takes a seventh of the CPU time.
        options["user_agent"] = f"Boto3/{metadata.version('boto3')}"
    return Config(**options)


def _version() -> str:
    try:
        return metadata.version("celery_sqs_visibility")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0"
