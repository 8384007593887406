"""How an option is declared: its default, its parser, and what the reference says of it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from celery_sqs_visibility.policy.option_parsers import Parser


def option(default: Any, parse: Parser, doc: str, shown_default: str | None = None) -> Any:
    """A field of `Options`.

    Args:
        default: its value where the user gives none.
        parse: makes the value of what the user wrote.
        doc: what it means, in sentences.
        shown_default: the default in the reference, where `repr(default)` does not tell.
    """
    shown = repr(default) if shown_default is None else shown_default
    metadata = {"parse": parse, "doc": doc, "default": shown, "bounds": getattr(parse, "bounds", "")}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


#: The names that are no names in Python, or not of our style.
_NAMES = {
    "client_config": "client-config",
    "sqs_creation_attributes": "sqs-creation-attributes",
    "queue_owner": "QueueOwnerAWSAccountId",
}


def option_name(field_name: str) -> str:
    """The name a user writes for a field of `Options`."""
    return _NAMES.get(field_name, field_name)
