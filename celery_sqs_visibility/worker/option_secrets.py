"""Transport options as they may be shown, in the answer to `celery inspect stats`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.app.utils import filter_hidden_settings
from kombu.utils.url import maybe_sanitize_url


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with their secrets masked: as Celery masks settings, and in URLs."""
    masked: dict[str, Any] = filter_hidden_settings(dict(options))
    return {name: _masked(value) for name, value in masked.items()}


def _masked(value: Any) -> Any:
    return maybe_sanitize_url(value) if isinstance(value, str) else value
