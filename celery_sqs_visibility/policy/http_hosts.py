"""The hosts that a request over HTTP may name in its header `Host`.

A page that a browser has open may have its own name lead to an address of the browser's network (DNS
rebinding), and read what answers there; the header still has the page's name. Names that only the network's
own DNS knows, and addresses, are no page's. Probes of Kubernetes ask for the pod's address, Prometheus for
that or for the name that its configuration has.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

#: Ends of names that no public DNS has: RFC 6761, 6762 and 8375, ICANN's `.internal`, Kubernetes' services.
PRIVATE_ENDS: Final = (".localhost", ".local", ".internal", ".home.arpa", ".svc")

#: Of the option `http_allowed_hosts`: any host.
ANY: Final = "*"


def is_allowed_host(header: str, allowed: Collection[str]) -> bool:
    """Whether a request with that header is answered.

    `allowed` are names; one that begins with a dot stands for all names that end so, `*` for all.
    """
    host = _without_port(header.strip()).rstrip(".").lower()
    if ANY in allowed or "." not in host or host.endswith(PRIVATE_ENDS) or _is_address(host):
        return True
    return any(
        host.endswith(name.lower()) if name.startswith(".") else host == name.rstrip(".").lower()
        for name in allowed
    )


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
