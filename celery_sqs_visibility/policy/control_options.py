"""The options for remote control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.control_names import LONGEST_PREFIX_CHARACTERS
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_parsers import flag, text
from celery_sqs_visibility.policy.queue_names import sqs_name


def control_prefix(name: str, value: Any) -> str:
    """What the names of control queues begin with: only characters that SQS takes."""
    if not text(name, value) or sqs_name(value) != value or "." in value:
        raise OptionError(f"expected {name} to have letters, digits, hyphens and underscores, got {value!r}")
    return str(value)


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """Whether workers take commands, and by which queues."""

    remote_control: bool = option(
        False,
        flag,
        "Whether workers answer `celery inspect` and take the commands of `celery control`, by a queue of "
        "their own each: see [remote control](remote-control.md). Workers and callers need it.",
    )
    control_prefix: str = option(
        "celery-control-",
        control_prefix,
        "What the names of the queues of remote control begin with, after `queue_name_prefix`.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc] # the next in Options' line has one
        whole = self.whole_control_prefix
        if self.remote_control and len(whole) > LONGEST_PREFIX_CHARACTERS:
            raise OptionError(
                f"expected queue_name_prefix and control_prefix to have at most {LONGEST_PREFIX_CHARACTERS} "
                f"characters in all, since remote_control is set, got {whole!r}: shorten one"
            )

    @property
    def whole_control_prefix(self) -> str:
        """What the names of control queues begin with, `queue_name_prefix` included."""
        return sqs_name(f"{self.queue_name_prefix}{self.control_prefix}")  # type: ignore[attr-defined]
