"""The options by which tools see a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_parsers import Whole, text

LOOPBACK: Final = "127.0.0.1"


def host(name: str, value: Any) -> str:
    """An address or a host's name: no URL, no port."""
    if "/" in text(name, value) or value.count(":") == 1:
        raise OptionError(f"expected {name} to be an address, as '0.0.0.0', without a port, got {value!r}")
    return str(value)


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

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc] # the next in Options' line has one
        if self.http_host != LOOPBACK and self.http_port is None:
            raise OptionError("expected http_port to be set where http_host is: without it nothing listens")
