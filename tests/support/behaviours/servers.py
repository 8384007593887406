"""Servers that rows are replayed on: emulators as processes of their own on 127.0.0.1, and AWS."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.behaviours.targets import BotoTarget
from support.sqs_servers import sqs_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Asks AWS, too, with the credentials of the environment.
AWS_VARIABLE = "AWS_CONFORMANCE"

#: Seconds of a unit: AWS takes a part of a second for a request, and two seconds for an empty answer;
#: LocalStack looks once a second whether a message is visible again.
UNITS = {"aws": 10.0, "localstack": 2.0}


def asks_aws() -> bool:
    """Whether AWS is to be asked."""
    return os.environ.get(AWS_VARIABLE) == "1"


@contextmanager
def server(name: str, directory: Path) -> Iterator[BotoTarget]:
    """That server, started for this, or AWS."""
    if name != "aws":
        with sqs_server(name, directory) as found:
            yield from _target(found.url, UNITS.get(name, 1.0))
    elif asks_aws():
        yield from _target(None, UNITS[name])
    else:
        raise ValueError(f"AWS is asked with {AWS_VARIABLE}=1 only")


def _target(url: str | None, unit: float) -> Iterator[BotoTarget]:
    target = BotoTarget(url, unit=unit, is_sampled=url is None)
    try:
        yield target
    finally:
        target.close()
