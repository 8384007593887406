"""Credentials of an assumed role, which clients renew by themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.credentials import RefreshableCredentials
    from botocore.session import Session as BotocoreSession

    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Seconds before credentials expire at which every request waits for new ones. A renewal takes less.
RENEWAL_SECONDS: Final = 60

#: Timeout for connecting to STS, and for its answer. There is one attempt: requests to SQS wait for it, and
#: their callers retry.
STS_SECONDS: Final = 3


def assume_role(
    session: Session,
    assumed: BotocoreSession,
    settings: ClientSettings,
    region: str,
    config: Config,
) -> None:
    """Give a session the role's credentials, which it fetches at its first request and renews in time.

    Args:
        session: signs the requests to STS.
        assumed: gets the role's credentials.
        settings: the role, and how long its credentials last.
        region: the region of STS.
        config: of the client for STS.
    """
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415 - see client_factory

    if session.get_credentials() is None:
        raise NoCredentialsError
    credentials = _role_credentials(session.client("sts", region_name=region, config=config), settings)
    provider = SimpleNamespace(load_credentials=lambda: credentials)
    assumed.register_component("credential_provider", provider)


def _role_credentials(sts: Any, settings: ClientSettings) -> RefreshableCredentials:
    from botocore.credentials import (  # noqa: PLC0415 - see client_factory
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
