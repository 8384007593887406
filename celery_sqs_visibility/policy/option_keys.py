"""Names of options, and keys of those that are mappings: a wrong one is refused with the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError

#: From this likeness on a name is a misspelt one. RedrivePolicy and RedriveAllowPolicy are less alike.
MISSPELT: Final = 0.85

#: The keys of an access key, each with the one that it means nothing without.
ACCESS_KEY_PAIRS: Final = (
    ("access_key_id", "secret_access_key"),
    ("secret_access_key", "access_key_id"),
    ("session_token", "access_key_id"),
)


def set_keys(value: Mapping[Any, Any]) -> dict[Any, Any]:
    """The keys that are set, as kombu sees it, and their values."""
    return {key: inner for key, inner in value.items() if inner is not None and inner != ""}


def unknown(noun: str, name: object, valid: Collection[str]) -> OptionError:
    """The error about a name that is none of the valid ones."""
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid ones are: {', '.join(valid)}"
    return OptionError(f"unknown {noun}: {hint}")


def check_keys(where: str, given: Iterable[Any], valid: Collection[str], noun: str = "key") -> None:
    """Refuse the first key that is none of the valid ones. No value is shown: it may be a secret."""
    for key in given:
        if key not in valid:
            raise unknown(f"{noun} {key!r} in {where}", key, valid)


def check_spelling(where: str, given: Iterable[Any], known: Collection[str], noun: str) -> None:
    """Refuse a key that is nearly a known one. Others pass, since AWS may have new ones."""
    for key in given:
        if key not in known and difflib.get_close_matches(str(key), known, n=1, cutoff=MISSPELT):
            raise unknown(f"{noun} {key!r} in {where}", key, known)


def check_pairs(where: str, given: Collection[Any], pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse a key without the one that it needs."""
    for key, needed in pairs:
        if key in given and needed not in given:
            raise OptionError(
                f"expected {where} to have {needed!r} beside {key!r}, which means nothing alone"
            )
