"""Credentials of an assumed role, which renew themselves without new clients."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.process_lock import SESSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from boto3.session import Session
    from botocore.credentials import RefreshableCredentials

    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Seconds before their end at which every request waits for new credentials; a renewal takes less.
RENEWAL_SECONDS: Final = 60

#: Seconds to connect to STS, and to wait for its answer. One attempt: requests to SQS wait meanwhile, and who
#: makes them tries again.
STS_SECONDS: Final = 3, 3

#: How AssumeRole names us in CloudTrail; kombu's SQS transport uses the same name.
SESSION_NAME: Final = "Celery"


def assuming_session(
    session: Session, settings: ClientSettings, region: str, network: Mapping[str, Any]
) -> Session:
    """Return a session whose credentials are the role's, fetched at the first request and renewed in time.

    Args:
        session: has the credentials that may assume the role.
        settings: with the role.
        region: whose STS to ask.
        network: botocore's Config options for the way there.
    """
    import boto3.session  # noqa: PLC0415 - see clients.new_client
    import botocore.session  # noqa: PLC0415 - see clients.new_client

    core = botocore.session.get_session()
    # botocore has no public way to hand a session credentials that renew themselves.
    core._credentials = _role_credentials(session, settings, _sts_creator(region, network))  # type: ignore[attr-defined] # noqa: SLF001
    return boto3.session.Session(botocore_session=core)


def _role_credentials(session: Session, settings: ClientSettings, new_sts: Any) -> RefreshableCredentials:
    from botocore.credentials import (  # noqa: PLC0415 - see clients.new_client
        AssumeRoleCredentialFetcher,
        RefreshableCredentials,
    )
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415 - see clients.new_client

    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError
    fetcher = AssumeRoleCredentialFetcher(
        new_sts,
        source,
        settings.role_arn or "",
        extra_args={"RoleSessionName": SESSION_NAME, "DurationSeconds": settings.role_seconds},
        expiry_window_seconds=settings.role_seconds,  # never from the fetcher's cache: we ask to renew
    )
    advisory, mandatory = renewal_times(settings)
    # Expired from the start, so that the first request fetches them. botocore's Deferred... would do so
    # too, but it renews 15 minutes before the end: for 15-minute credentials at every single request.
    return RefreshableCredentials(
        "",
        "",
        "",
        datetime.fromtimestamp(0, timezone.utc),
        fetcher.fetch_credentials,
        "assume-role",
        advisory_timeout=advisory,
        mandatory_timeout=mandatory,
    )


def renewal_times(settings: ClientSettings) -> tuple[int, int]:
    """Seconds before the end of a role's credentials at which one thread renews, and at which all wait."""
    buffer = settings.role_buffer_seconds if settings.role_buffer_seconds < settings.role_seconds else 0
    mandatory = max(buffer, RENEWAL_SECONDS)
    # Half of what is left at most, so that fresh credentials are not due for renewal at once.
    return mandatory + min(2 * RENEWAL_SECONDS, (settings.role_seconds - mandatory) // 2), mandatory


def _sts_creator(region: str, network: Mapping[str, Any]) -> Any:
    """Return what makes the STS client for each renewal; it runs in whichever thread's request is due."""
    import botocore.session  # noqa: PLC0415 - see clients.new_client
    from botocore.config import Config  # noqa: PLC0415 - see clients.new_client

    core = botocore.session.get_session()
    connect, read = STS_SECONDS
    config = Config(**network, connect_timeout=connect, read_timeout=read, retries={"total_max_attempts": 1})

    def create(service: str, **credentials: Any) -> Any:
        with SESSIONS:
            return core.create_client(service, region_name=region, config=config, **credentials)

    return create
