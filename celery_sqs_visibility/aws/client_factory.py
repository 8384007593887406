"""boto3 clients for SQS: where the settings of a connection become botocore's.

Importing this module is cheap: boto3 comes in with the first client, because producers import the
package in processes that may never send anything.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.process_lock import SESSIONS
from celery_sqs_visibility.aws.quiet import quiet_botocore
from celery_sqs_visibility.aws.roles import assuming_session
from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS

if TYPE_CHECKING:
    from botocore.config import Config
    from botocore.loaders import Loader
    from botocore.session import Session as BotocoreSession
    from types_boto3_sqs import SQSClient

#: Where kombu's SQS transport goes when nothing names a region.
DEFAULT_REGION: Final = "us-east-1"

#: What of the options is about the way out, and so about the way to STS, too.
NETWORK: Final = frozenset(
    {"proxies", "proxies_config", "client_cert", "use_fips_endpoint", "use_dualstack_endpoint"}
)

#: Connections a client keeps open; botocore's 10 are fewer than receivers and settlers may need at once.
POOL_CONNECTIONS: Final = 64

#: Seconds to establish a connection, whatever it is for: time to repeat the first packet once.
CONNECT_SECONDS: Final = 3

#: When the kernel asks a silent peer whether it is there, how often (both in seconds), and how often in vain
#: until the connection is dead.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}

#: Seconds a poll's answer may be late before the connection counts as dead.
POLL_MARGIN: Final = 10
SHORT_POLL_MARGIN: Final = 5

#: Up to that many seconds a poll's wait counts as short.
SHORT_WAIT: Final = 1


class Purpose(Enum):
    """What a client is for."""

    #: Long polls. One attempt: the receiver's loop retries, and knows the error.
    RECEIVE = "receive"
    #: Short polls: as long ones, but one that gets no answer is soon over.
    GLANCE = "glance"
    #: Deletes, visibility changes, look-ups. One attempt: the settler retries by entry, against the deadline.
    SETTLE = "settle"
    #: Sending and creating. One attempt: kombu retries, as `task_publish_retry_policy` says.
    PUBLISH = "publish"
    #: Sending in batches. One attempt: the sender retries by entry.
    PUBLISH_BATCH = "publish batch"


#: Seconds to wait for an answer. What settles and extends must leave time for more tries before a deadline
#: passes; and a publisher, whose caller waits, makes four attempts by Celery's default retry policy. A batch
#: that is cut off is sent again, ten messages twice: better to wait.
READ_SECONDS: Final = {
    Purpose.RECEIVE: WAIT_TIME_SECONDS + POLL_MARGIN,
    Purpose.GLANCE: SHORT_WAIT + SHORT_POLL_MARGIN,
    Purpose.SETTLE: 4,
    Purpose.PUBLISH: 5,
    Purpose.PUBLISH_BATCH: 10,
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where SQS is and who asks. Hashable, so that equal settings share clients; repr shows no secrets.

    Attributes:
        region: `None` leaves it to the profile, AWS_REGION or AWS_DEFAULT_REGION, then "us-east-1".
        endpoint_url: `None` leaves it to botocore (AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, profiles).
        use_ssl: for the endpoints botocore makes up.
        access_key_id: `None` leaves credentials to boto3's chain.
        secret_access_key: goes with `access_key_id`.
        session_token: goes with `access_key_id` when that is temporary.
        role_arn: a role to assume with those credentials; its own are renewed without new clients.
        role_seconds: DurationSeconds of AssumeRole.
        role_buffer_seconds: renew the role's credentials that much before they end. As with kombu, a
            buffer that is not shorter than `role_seconds` is ignored.
        config: botocore's Config options, frozen by `frozen_config`.
    """

    region: str | None = None
    endpoint_url: str | None = None
    use_ssl: bool = True
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    role_seconds: int = 900
    role_buffer_seconds: int = 0
    # Not in repr: `proxies` may hold a password.
    config: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def renewable(self) -> bool:
        """Whether a new client could have other credentials: not if they are written here."""
        return self.access_key_id is None or self.role_arn is not None


def frozen_config(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Make `client-config` hashable: the form `ClientSettings.config` takes. Nested dicts are welcome."""
    return tuple(sorted((name, _freeze(value)) for name, value in options.items()))


def _freeze(value: Any) -> Any:
    # A frozenset of pairs stands for a dict: no option of botocore's Config is a set.
    if isinstance(value, Mapping):
        return frozenset((key, _freeze(inner)) for key, inner in value.items())
    return tuple(map(_freeze, value)) if isinstance(value, (list, tuple)) else value


def _thaw(value: Any) -> Any:
    return {key: _thaw(inner) for key, inner in value} if isinstance(value, frozenset) else value


def new_client(settings: ClientSettings, purpose: Purpose) -> SQSClient:
    """Make a client, with a session of its own. The client may be shared by threads, not by processes.

    May be called from any thread. No request to SQS or STS is made, but boto3's search for credentials
    may ask the instance's metadata service.

    Raises:
        Exception: whatever boto3 makes of the settings; `aws.translate.translate` knows them.
    """
    import boto3.session  # noqa: PLC0415 - boto3 takes 0.1 s to import; most producers never get here

    quiet_botocore()
    with SESSIONS:
        core = _botocore_session()
        session = boto3.session.Session(
            botocore_session=core,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=settings.secret_access_key,
            aws_session_token=settings.session_token,
        )
        region = settings.region or session.region_name or os.environ.get("AWS_REGION") or DEFAULT_REGION
        if settings.role_arn:
            network = {name: value for name, value in _options(settings) if name in NETWORK}
            session = assuming_session(session, settings, region, network)
        client = session.client(
            "sqs",
            region_name=region,
            endpoint_url=settings.endpoint_url,
            use_ssl=settings.use_ssl,
            config=_config(settings, purpose, core.get_config_variable("user_agent_appid")),
        )
        _notice_dead_peers(client)
        return client


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """What reads and keeps botocore's descriptions of services; it need not do so for each client anew."""
    from botocore.loaders import create_loader  # noqa: PLC0415 - see new_client

    return create_loader(data_path)


def _botocore_session() -> BotocoreSession:
    """A session that shares its loader: making a client then takes a tenth of the time, but for the first."""
    from botocore.session import get_session  # noqa: PLC0415 - see new_client

    session = get_session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


def _notice_dead_peers(client: SQSClient) -> None:
    """Have the kernel ask whether the other end is still there while a long poll waits in silence.

    botocore's `tcp_keepalive` does so after two hours, and has no setting for less. Where the system or a
    later botocore does not know what we set here, a dead connection is noticed when the answer is overdue.
    """
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    options = getattr(session, "_socket_options", None)
    if isinstance(options, list):
        options += [
            (socket.IPPROTO_TCP, getattr(socket, name), value)
            for name, value in KEEPALIVE.items()
            if hasattr(socket, name)
        ]


def _options(settings: ClientSettings) -> Iterator[tuple[str, Any]]:
    return ((name, _thaw(value)) for name, value in settings.config)


def _config(settings: ClientSettings, purpose: Purpose, app_id: str | None) -> Config:
    """Merge the user's options with ours: theirs win, except where our own loops count on a figure.

    Args:
        settings: with the options.
        purpose: what the client is for.
        app_id: what the environment or a profile has the user agent name.
    """
    from botocore.config import Config  # noqa: PLC0415 - see new_client

    options = dict(_options(settings))
    options.setdefault("connect_timeout", CONNECT_SECONDS)
    options.setdefault("read_timeout", READ_SECONDS[purpose])
    # The mode, too: "adaptive", which may be set for the whole machine, slows a client down after a
    # throttled answer, and looks at botocore's own attempts to speed it up again.
    once = {"total_max_attempts": 1, "mode": "standard"}
    if purpose is Purpose.PUBLISH:
        options.setdefault("retries", once)
    else:
        # Held: a hidden second attempt would outlast the deadline the caller retries against.
        options["retries"] = once
    if purpose is Purpose.RECEIVE:
        # Held: a poll cut off by the client still takes messages, and nobody gets them. `None` would
        # mean for ever, and threads would hang on for ever to connections that died silently.
        options["read_timeout"] = max(options["read_timeout"] or 0, READ_SECONDS[purpose])
    if purpose is Purpose.GLANCE:
        # Held: while nothing answers, threads that hang accumulate for as long.
        options["read_timeout"] = READ_SECONDS[purpose]
    options["max_pool_connections"] = max(options.get("max_pool_connections") or 0, POOL_CONNECTIONS)
    options["tcp_keepalive"] = True
    options["parameter_validation"] = False  # costs CPU on every call, and our calls have few shapes
    if not (app_id or options.keys() & {"user_agent", "user_agent_appid"}):
        # botocore would put its own together twice a request, which takes a seventh of a request's CPU time.
        options["user_agent"] = f"Boto3/{metadata.version('boto3')}"
    agent = f"celery_sqs_visibility/{_version()}"
    options["user_agent_extra"] = " ".join(filter(None, (options.get("user_agent_extra"), agent)))
    return Config(**options)


def _version() -> str:
    try:
        return metadata.version("celery_sqs_visibility")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0"
