"""A thing that is wrong, with what follows and what to do; and how its parts are worded."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad it is, the worst first."""

    ERROR = 0  # work is lost, or done twice
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a doctor's report.

    Attributes:
        thing: the queue, task, setting or machine.
        problem: what is wrong with it, with the values.
        consequence: what follows, as a sentence.
        remedy: what to do, to be pasted where it can be.
    """

    severity: Severity
    thing: str
    problem: str
    consequence: str
    remedy: str


def set_attributes(url: str, **attributes: object) -> str:
    """The command that sets attributes of a queue."""
    texts = {name: json.dumps(v) if isinstance(v, dict) else str(v) for name, v in attributes.items()}
    return f"aws sqs set-queue-attributes --queue-url {url} --attributes {shlex.quote(json.dumps(texts))}"


def transport_option(name: str, value: object, queue: str = "") -> str:
    """The setting of a transport option, of all queues or of one."""
    given = {"queues": {queue: {name: value}}} if queue else {name: value}
    return f"broker_transport_options = {given!r}, beside your others"


def and_more(names: list[str], kind: str) -> str:
    """The first of some things, and how many others there are."""
    others = len(names) - 1
    return f"{kind} {names[0]!r}" + (f" (and {others} more)" if others else "")
