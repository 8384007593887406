"""The setting `broker_url`: where SQS is, and the credentials, if it says so.

It is read here and not by kombu, whose errors show a part of a secret that has a "/", and whose URLs need one
quoted (kombu/utils/url.py: `url_to_parts`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from celery_sqs_visibility.errors import OptionError

SCHEME_END: Final = "://"

#: The first and the last need `broker_transport`: kombu has its own "sqs", and reads no scheme with "_".
SCHEMES: Final = frozenset({"sqs", "celery-sqs-visibility", "celery_sqs_visibility"})

#: What kombu fills in where the URL names no host.
NO_HOST: Final = "localhost"

SCHEME: Final = re.compile(r"[a-z][a-z0-9+._-]*", re.IGNORECASE)
HOST: Final = re.compile(r"(?P<host>\[[^]]*\]|[^:]*)(:(?P<port>.*))?", re.DOTALL)
LAST_PORT: Final = 65535

FORM: Final = "its form is sqs://, sqs://KEY:SECRET@ or sqs://KEY:SECRET@host:port//"


@dataclass(frozen=True)
class BrokerURL:
    """The parts of the URL; `None` for those that it has not."""

    host: str | None = None
    port: int | None = None
    userid: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, client: Any) -> BrokerURL:
        """The URL of a kombu Connection, or what it was given in place of one.

        Raises:
            OptionError: there is no such URL. The message shows nothing that may be part of a secret.
        """
        userid, password = client.userid or None, client.password or None
        if SCHEME_END in (client.hostname or ""):
            url = cls.parse(client.hostname)
            return url if url.userid else replace(url, userid=userid, password=password)
        host = None if client.hostname == NO_HOST and not client.port else client.hostname or None
        return cls(host, client.port or None, userid, password)

    @classmethod
    def parse(cls, url: str) -> BrokerURL:
        """Read a URL. Credentials end at the last "@", so that secrets need no quotes."""
        scheme, _, rest = url.partition(SCHEME_END)
        if scheme.lower() not in SCHEMES:
            shown = repr(scheme + SCHEME_END) if SCHEME.fullmatch(scheme) else "no scheme"
            raise OptionError(
                f"broker_url begins with {shown} and not with sqs://: with broker_transport = "
                f"'celery_sqs_visibility' {FORM}, or it is left out"
            )
        credentials, _, location = rest.rpartition("@")
        userid, _, password = map(unquote, credentials.partition(":"))
        if bool(userid) != bool(password):
            missing = "secret" if userid else "key"
            raise OptionError(f"broker_url has credentials without a {missing}: {FORM}")
        host, port = _host_and_port(location.partition("/")[0])
        has_host = host and (host, port) != (NO_HOST, None)
        return cls(host if has_host else None, port, userid or None, password or None)

    def as_uri(self, *, include_password: bool = False, mask: str = "**") -> str:
        """The URL, with `mask` in the secret's place."""
        credentials = ""
        if self.userid:
            password = quote(self.password or "", safe="") if include_password else mask
            credentials = f"{quote(self.userid, safe='')}:{password}@"
        return f"sqs://{credentials}{self.host or ''}{f':{self.port}' if self.port else ''}//"


def _host_and_port(location: str) -> tuple[str, int | None]:
    found = HOST.fullmatch(location)
    host, port = (found["host"], found["port"]) if found else ("", location)
    if not port:
        return host.lower(), None
    if port.isascii() and port.isdecimal() and 0 < int(port) <= LAST_PORT:
        return host.lower(), int(port)
    # Not shown: without an "@" it is a secret.
    raise OptionError(
        f"broker_url has a port that is no number from 1 to {LAST_PORT}, or no '@' after the secret: {FORM}"
    )
