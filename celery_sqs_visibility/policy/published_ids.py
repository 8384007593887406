"""Checks of ids at publication: those that SQS or workers would refuse are refused here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from celery_sqs_visibility.errors import InvalidIdError

#: API_SendMessage: `MessageGroupId` and `MessageDeduplicationId` are of letters, digits and punctuation.
_ID: Final = re.compile(r"[!-~]{1,128}")
_NOT_OF_AN_ID: Final = re.compile(r"[^!-~]")

#: The headers of a task that are a person's own text, and end in logs, results and dead letters.
_NAMES: Final = ("id", "shadow", "group")

#: As `worker/validation.py` refuses.
UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def checked_id(name: str, value: Any, queue: str) -> str:
    """The value as text, if SQS takes it as that property of a message.

    Raises:
        InvalidIdError: SQS refuses it, and with it all messages of its batch.
    """
    text = str(value)
    if _ID.fullmatch(text):
        return text
    found = _NOT_OF_AN_ID.search(text)
    where = f"{found[0]!r} at {found.start()}" if found else f"a length of {len(text)}"
    hashed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    raise InvalidIdError(
        f"expected the {name} of a message for queue {queue!r} to have 1 to 128 ASCII letters, digits and "
        f"punctuation, got {text[:200]!r}, with {where}; its hash will do: {hashed} "
        "(hashlib.sha256(text.encode()).hexdigest())"
    )


def check_names(headers: Mapping[str, Any]) -> None:
    """Check what a person may have named in a task's headers.

    Raises:
        InvalidIdError: no worker would run the task.
    """
    for name in _NAMES:
        value = headers.get(name)
        if value is None or (isinstance(value, str) and value.isprintable()):
            continue
        if not isinstance(value, str):
            kind = type(value).__name__
            raise InvalidIdError(
                f"expected the {name} of task {headers['task']!r} to be text, got {value!r} of type {kind}: "
                f"give {str(value)!r}"
            )
        if found := UNPRINTABLE.search(value):
            raise InvalidIdError(
                f"expected the {name} of task {headers['task']!r} to have no control characters, got "
                f"{value[:200]!r}, with {found[0]!r} at {found.start()}"
            )
