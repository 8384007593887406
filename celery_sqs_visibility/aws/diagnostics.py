"""Questions of diagnostic commands: clock differences, permissions for KMS keys. They change nothing.

Source of the dry run: "Testing your permissions", AWS KMS Developer Guide.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.client_factory import DEFAULT_REGION, brief_config, open_session
from celery_sqs_visibility.aws.process_lock import SESSIONS
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Short, because a person waits for the command.
CLOCK_TIMEOUT_SECONDS: Final = 3
KMS_TIMEOUT_SECONDS: Final = 4


def clock_offset(endpoint: str) -> float | None:
    """Return the seconds by which this machine's clock is ahead of the endpoint's; `None` if unknown.

    0 if the clocks may agree: the Date header has whole seconds, and the answer may have been long on its
    way. The request is unsigned: SQS refuses it, whatever this machine's clock says, and dates the answer.
    """
    if not endpoint.startswith(("https://", "http://")):
        return None
    began = SYSTEM_CLOCK.wall()
    try:
        with urllib.request.urlopen(endpoint, timeout=CLOCK_TIMEOUT_SECONDS) as answer:  # noqa: S310 - see above
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as refusal:
        date = refusal.headers.get("Date")
        refusal.close()
    except (OSError, ValueError):
        return None
    try:
        theirs = parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError):
        return None
    least, most = began - (theirs + 1), SYSTEM_CLOCK.wall() - theirs
    return 0.0 if least <= 0 <= most else (least + most) / 2


def may_generate_data_key(settings: ClientSettings, key: str, region: str) -> bool | None:
    """Return whether GenerateDataKey is allowed, by a dry run; `None` if KMS does not say.

    KMS also refuses the dry run if the key policy allows requests only through SQS (kms:ViaService).
    """
    try:
        _kms_client(settings, region).generate_data_key(KeyId=key, KeySpec="AES_256", DryRun=True)
    except Exception as exc:  # noqa: BLE001 - whatever botocore raises, the permission is unknown
        response: Any = getattr(exc, "response", None) or {}
        match response.get("Error", {}).get("Code"):
            case "DryRunOperationException":  # the request would have succeeded
                return True
            case (
                "AccessDeniedException"
                | "DisabledException"
                | "NotFoundException"
                | "KMSInvalidStateException"
            ):
                return False
        return None
    return True


def _kms_client(settings: ClientSettings, region: str) -> Any:
    with SESSIONS:
        # The endpoint in the settings is SQS's. botocore finds KMS's (AWS_ENDPOINT_URL_KMS).
        session, found = open_session(replace(settings, endpoint_url=None, region=region))
        config = brief_config(settings, KMS_TIMEOUT_SECONDS)
        return session.client("kms", region_name=found or DEFAULT_REGION, config=config)
