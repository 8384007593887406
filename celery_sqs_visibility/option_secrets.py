"""Settings and transport options without secrets, for `celery report` and `celery inspect`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from celery.app.utils import HIDDEN_SETTINGS  # type: ignore[attr-defined]

from celery_sqs_visibility.contacts.app import replace_settings_filter

MASK: Final = "********"

#: Finds the secret of a URL. It ends at the last "@", so an "@" in it needs no quoting:
#: `connection_settings.py`.
CREDENTIALS: Final = re.compile(r"(?<=://)([^:/@]*):.*@", re.DOTALL)

#: The same for a proxy, whose URL needs no scheme in botocore.
PROXIES: Final = "proxies"
PROXY_CREDENTIALS: Final = re.compile(r"^((?:[^/]*://)?[^:/@]*):.*@", re.DOTALL)


def mask_settings() -> None:
    """Mask settings where Celery shows them in this process (celery/app/utils.py: `Settings.table`).

    Called when the transport or the task class is imported. Celery's error about a broker's URL would show
    part of a secret with a "/".
    """
    replace_settings_filter(without_secrets)


def without_secrets(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """Mask the settings whose names Celery hides, and the secrets of URLs, at any depth."""
    return {name: _masked(name, value) for name, value in settings.items()}


def _masked(name: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _masked_proxies(value) if name == PROXIES else without_secrets(value)
    if isinstance(name, str) and HIDDEN_SETTINGS.search(name):
        return MASK
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_masked(None, each) for each in value]
    return _masked_url(value) if isinstance(value, str) and "://" in value else value


def _masked_proxies(proxies: Mapping[Any, Any]) -> dict[Any, Any]:
    return {scheme: PROXY_CREDENTIALS.sub(rf"\1:{MASK}@", str(url)) for scheme, url in proxies.items()}


def _masked_url(url: str) -> str:
    place, mark, query = CREDENTIALS.sub(rf"\1:{MASK}@", url).partition("?")
    return place + mark + urlencode(without_secrets(dict(parse_qsl(query))), safe="*:/@")
