"""Settings of a client: region, endpoint and credentials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sqs_visibility.policy.predefined import Access


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client. Hashable, so that equal settings share clients; repr shows no secrets.

    Attributes:
        region: by default that of the profile, AWS_REGION or AWS_DEFAULT_REGION, else "us-east-1".
        endpoint_url: by default botocore's (AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, profiles).
        use_ssl: for botocore's default endpoints.
        access_key_id: by default boto3 looks for credentials.
        session_token: of temporary credentials.
        role_arn: a role to assume with those credentials.
        role_external_id: ExternalId of AssumeRole.
        role_seconds: DurationSeconds of AssumeRole.
        role_buffer_seconds: renew the role's credentials that many seconds before they expire. As in kombu, a
            buffer of `role_seconds` or more is ignored.
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
    # `proxies` may have a password.
    config: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def renewable(self) -> bool:
        """Return whether a new client may have other credentials. Those given here never change."""
        return self.access_key_id is None or self.role_arn is not None

    def with_own(self, access: Access) -> ClientSettings:
        """Return these settings with the region and the access key of a queue or topic, if it has any."""
        settings = replace(self, region=access.region or self.region)
        if not access.access_key_id:
            return settings
        return replace(
            settings,
            access_key_id=access.access_key_id,
            secret_access_key=access.secret_access_key,
            session_token=access.session_token,
        )

    def config_options(self) -> dict[str, Any]:
        """Return botocore's Config options as a dict again."""
        return {name: _thaw(value) for name, value in self.config}


def frozen_config(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Make botocore's Config options hashable, nested dicts included."""
    return tuple(sorted((name, _freeze(value)) for name, value in options.items()))


def _freeze(value: Any) -> Any:
    # A frozenset of pairs stands for a dict; botocore has no options that are sets.
    if isinstance(value, Mapping):
        return frozenset((key, _freeze(inner)) for key, inner in value.items())
    return tuple(map(_freeze, value)) if isinstance(value, (list, tuple)) else value


def _thaw(value: Any) -> Any:
    return {key: _thaw(inner) for key, inner in value} if isinstance(value, frozenset) else value
