"""The settings of a connection to SQS, endpoint and credentials: the value that clients are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

#: The parts of an access key.
CREDENTIALS: Final = ("access_key_id", "secret_access_key", "session_token")


class Credentials(Protocol):
    """An access key that a queue or a topic may have in place of the connection's."""

    @property
    def access_key_id(self) -> str | None:
        """`None`: it has none of its own."""

    @property
    def secret_access_key(self) -> str | None:
        """Goes with the id."""

    @property
    def session_token(self) -> str | None:
        """Of temporary credentials."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client. Hashable, so that equal settings share clients; repr shows no secrets.

    Attributes:
        region: `None` leaves it to the profile, AWS_REGION or AWS_DEFAULT_REGION, then "us-east-1".
        endpoint_url: `None` leaves it to botocore (AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, profiles).
        use_ssl: for the endpoints that botocore makes up.
        access_key_id: `None` leaves credentials to boto3's chain.
        session_token: of temporary credentials.
        role_arn: a role to assume with those credentials.
        role_external_id: ExternalId of AssumeRole.
        role_seconds: DurationSeconds of AssumeRole.
        role_buffer_seconds: renew the role's credentials that many seconds before they end. As with kombu, a
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
    role_external_id: str | None = field(default=None, repr=False)
    role_seconds: int = 900
    role_buffer_seconds: int = 0
    # Not in repr: `proxies` may hold a password.
    config: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def renewable(self) -> bool:
        """Whether a new client may have other credentials: not if they are written here."""
        return self.access_key_id is None or self.role_arn is not None

    def with_own(self, credentials: Credentials, region: str | None) -> ClientSettings:
        """Return these settings in that region, and with these credentials if there are any."""
        own = {name: getattr(credentials, name) for name in CREDENTIALS} if credentials.access_key_id else {}
        return replace(self, region=region, **own)

    def config_options(self) -> dict[str, Any]:
        """Return botocore's Config options as they were before `frozen_config`."""
        return {name: _thaw(value) for name, value in self.config}


def frozen_config(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Make botocore's Config options hashable, nested dicts included."""
    return tuple(sorted((name, _freeze(value)) for name, value in options.items()))


def _freeze(value: Any) -> Any:
    # A frozenset of pairs stands for a dict: no option of botocore's Config is a set.
    if isinstance(value, Mapping):
        return frozenset((key, _freeze(inner)) for key, inner in value.items())
    return tuple(map(_freeze, value)) if isinstance(value, (list, tuple)) else value


def _thaw(value: Any) -> Any:
    return {key: _thaw(inner) for key, inner in value} if isinstance(value, frozenset) else value
