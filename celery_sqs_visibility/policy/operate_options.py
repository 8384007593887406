"""The options by which tools see a worker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_parsers import Whole, text

LOOPBACK: Final = "127.0.0.1"

HOST_NAME: Final = re.compile(r"\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def host(name: str, value: Any) -> str:
    """An address or a host's name: no URL, no port."""
    if "/" in text(name, value) or value.count(":") == 1:
        raise OptionError(f"expected {name} to be an address, as '0.0.0.0', without a port, got {value!r}")
    return str(value)


def host_names(name: str, value: Any) -> tuple[str, ...]:
    """Names of hosts, without ports: a list, or text with commas."""
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple | set) or not all(
        isinstance(each, str) and HOST_NAME.fullmatch(each) for each in names
    ):
        raise OptionError(
            f"expected {name} to be a list of names as 'worker.example.com' or '.example.com', or ['*'], "
            f"got {value!r}"
        )
    return tuple(names)


@dataclass(frozen=True, kw_only=True)
class OperateOptions:
    """Where a worker answers over HTTP."""

    http_port: int | None = option(
        None,
        Whole(1, 65535),
        "The TCP port at which a worker answers `GET /healthz` and `/readyz` ([health](health.md)), and "
        "`/metrics` ([metrics](metrics.md)). "
        "Without it there is none; probes on the same host need none.",
    )
    http_host: str = option(
        LOOPBACK, host, "The address of that port. What is not loopback answers whoever reaches it."
    )

    http_allowed_hosts: tuple[str, ...] = option(
        (),
        host_names,
        "More names by which that port may be asked, as a request's `Host` header has them; `.example.com` "
        "stands for all names that end so, `*` for all ([health](health.md#over-http)).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc] # the next in Options' line has one
        given = {"http_host": self.http_host != LOOPBACK, "http_allowed_hosts": self.http_allowed_hosts}
        for name in (name for name, is_set in given.items() if is_set and self.http_port is None):
            raise OptionError(f"expected http_port to be set where {name} is: without it nothing listens")
