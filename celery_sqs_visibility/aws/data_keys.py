"""Dry run of KMS: would a key make data keys for these credentials? Nothing is made.

Source: "Testing your permissions", AWS KMS Developer Guide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.client_factory import DEFAULT_REGION, network_options, open_session
from celery_sqs_visibility.aws.process_lock import SESSIONS

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.client_settings import ClientSettings

TIMEOUT_SECONDS: Final = 4

#: KMS's answer to a dry run that would have worked.
WOULD_WORK: Final = "DryRunOperationException"
REFUSALS: Final = {
    "AccessDeniedException",
    "DisabledException",
    "NotFoundException",
    "KMSInvalidStateException",
}


def may_generate_data_key(settings: ClientSettings, key: str, region: str) -> bool | None:
    """Whether GenerateDataKey is allowed; `None` where KMS does not say. A request that changes nothing.

    A key policy may allow it by way of SQS alone, as its condition kms:ViaService: then KMS refuses here.
    """
    try:
        _client(settings, region).generate_data_key(KeyId=key, KeySpec="AES_256", DryRun=True)
    except Exception as exc:  # noqa: BLE001 - botocore's many; in any case the permission is not known
        response: Any = getattr(exc, "response", None) or {}
        code = response.get("Error", {}).get("Code")
        return True if code == WOULD_WORK else False if code in REFUSALS else None
    return True


def _client(settings: ClientSettings, region: str) -> Any:
    from botocore.config import Config  # noqa: PLC0415 - see client_factory

    with SESSIONS:
        # The endpoint is that of SQS; KMS's is botocore's to know (AWS_ENDPOINT_URL_KMS).
        session, found = open_session(replace(settings, endpoint_url=None, region=region))
        config = Config(
            **network_options(settings),
            connect_timeout=TIMEOUT_SECONDS,
            read_timeout=TIMEOUT_SECONDS,
            retries={"total_max_attempts": 1},
        )
        return session.client("kms", region_name=found or DEFAULT_REGION, config=config)
