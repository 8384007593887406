"""Settings of a connection as the user wrote them: the broker URL, and the transport options.

The URL has an endpoint, credentials and transport options, all of them optional. A monitor that only takes a
URL gets its options there: `celery-sqs-visibility://?remote_control=true`. kombu does not parse the URL: its
errors show part of a secret with a "/", and its URLs need such a secret quoted (kombu/utils/url.py:
`url_to_parts`).

kombu adds the retry policy of a publication to the options of its connection, and of connections cloned from
it later, before it rejects the publication for a wrong name in that policy (kombu/messaging.py:
`Producer.publish`). Such a name is not an option, and must not make the next connection fail.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import KOMBU_OPTIONS, MAX_PORT, RETRY_POLICY
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import AMAZONS_HOST

logger = logging.getLogger(__name__)

SCHEME_END: Final = "://"

#: The first and the last need `broker_transport`: kombu has its own "sqs", and parses no scheme with "_".
SCHEMES: Final = frozenset({"sqs", "celery-sqs-visibility", "celery_sqs_visibility"})

#: Schemes of an endpoint as Amazon and boto3 write it, and the option that each implies.
ENDPOINT_SCHEMES: Final = {"https": (("is_secure", "true"),), "http": (("is_secure", "false"),)}

SCHEME: Final = re.compile(r"[a-z][a-z0-9+._-]*", re.IGNORECASE)
HOST: Final = re.compile(r"(?P<host>\[[^]]*\]|[^:]*)(:(?P<port>.*))?", re.DOTALL)

FORM: Final = "its form is sqs://, sqs://KEY:SECRET@ or sqs://KEY:SECRET@host:port//"

NO_OPTION: Final = (
    "unknown transport option %r is ignored: a publication's retry policy has it, whose keys are "
    "max_retries, interval_start, interval_step and interval_max"
)

#: The options of the connections made in this process. Each access is atomic, so it has no lock.
_accepted: Final[set[str]] = set()


@dataclass(frozen=True)
class BrokerURL:
    """The parts of the URL; `None` for missing ones.

    Attributes:
        options: names and values of transport options, which override `broker_transport_options`.
    """

    host: str | None = None
    port: int | None = None
    userid: str | None = None
    password: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, client: Any) -> BrokerURL:
        """Read the URL of a kombu Connection, or the host that it was given instead.

        Raises:
            OptionError: the URL is invalid. The message shows nothing that may be part of a secret.
        """
        given = client.hostname or ""
        is_url = SCHEME_END in given or "@" in given
        url = cls.parse(given if SCHEME_END in given else f"sqs://{given}") if is_url else cls(given or None)
        # Celery has separate settings for the parts that a URL lacks.
        url = replace(
            url,
            port=url.port or client.port or None,
            userid=url.userid or client.userid or None,
            password=url.password or client.password or None,
        )
        if bool(url.userid) != bool(url.password):
            missing = "secret" if url.userid else "key"
            raise OptionError(f"broker_url has credentials without a {missing}: {FORM}")
        # kombu fills in "localhost" where the URL names no host.
        return replace(url, host=None) if (url.host, url.port) == ("localhost", None) else url

    @classmethod
    def parse(cls, url: str) -> BrokerURL:
        """Read a URL. Credentials end at the last "@", so secrets need no quoting.

        `https://sqs.REGION.amazonaws.com` means that region; any other https:// or http:// URL is an
        endpoint.
        """
        scheme, _, rest = url.partition(SCHEME_END)
        _check_scheme(scheme)
        credentials, _, location = rest.rpartition("@")
        userid, _, password = map(unquote, credentials.partition(":"))
        location, _, query = location.partition("?")
        host, port = _host_and_port(location.partition("/")[0])
        options = ENDPOINT_SCHEMES.get(scheme.lower(), ())
        if options and (amazons := AMAZONS_HOST.fullmatch(host)):
            host, port, options = "", None, (("region", amazons[1]),)
        return cls(host or None, port, userid or None, password or None, (*options, *_options(query)))

    def with_secret(self) -> str:
        """A URL to connect with, which needs no other setting."""
        credentials, port = "", f":{self.port}" if self.port else ""
        if self.userid:
            credentials = f"{quote(self.userid, safe='')}:{quote(self.password or '', safe='')}@"
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"celery-sqs-visibility://{credentials}{self.host or ''}{port}//{query}"


def _check_scheme(scheme: str) -> None:
    if scheme.lower() not in {*SCHEMES, *ENDPOINT_SCHEMES}:
        shown = repr(scheme + SCHEME_END) if SCHEME.fullmatch(scheme) else "no scheme"
        raise OptionError(
            f"broker_url begins with {shown} and not with sqs://: with broker_transport = "
            f"'celery_sqs_visibility' {FORM}, or it is left out"
        )


def _host_and_port(location: str) -> tuple[str, int | None]:
    found = HOST.fullmatch(location)
    host, port = (found["host"], found["port"]) if found else ("", location)
    if not port:
        return host.lower(), None
    if port.isascii() and port.isdecimal() and 0 < int(port) <= MAX_PORT:
        return host.lower(), int(port)
    # Don't show it: without an "@" it may be a secret.
    raise OptionError(
        f"broker_url has a port that is not a number from 1 to {MAX_PORT}, or no '@' after the secret: {FORM}"
    )


def _options(query: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse_qsl(query, strict_parsing=True)) if query else ()
    except ValueError:
        # Don't show it: without an "@" it may be part of a secret.
        raise OptionError(
            "broker_url has a query that is not a list of transport options: its form is ?region=eu-west-1, "
            "and several have & between them"
        ) from None


def options_as_written(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, without names from a retry policy, which are logged. Any thread."""
    known = Options.known_names()
    strange = [name for name in given if name not in known]
    if not strange or not _are_of_a_policy(strange, given):
        return dict(given)
    for name in strange:
        logger.warning(NO_OPTION, name)
    return {name: value for name, value in given.items() if name in known}


def note_accepted(given: Mapping[str, Any]) -> None:
    """Note that a connection was made with these options. Any thread."""
    _accepted.add(_ours(given))


def _are_of_a_policy(strange: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Returns whether the unknown names come from a retry policy, whose valid names then come first.

    They do if a connection was made before with the same options, but without these names. Before the first
    connection they do if all valid names of a policy come first, and no unknown name resembles an option of
    ours.
    """
    names = list(given)
    before = RETRY_POLICY.intersection(names[: names.index(strange[0])])
    if before and _ours(given) in _accepted:
        return True
    ours = Options.known_names() - KOMBU_OPTIONS
    return before == RETRY_POLICY and not any(difflib.get_close_matches(name, ours, 1) for name in strange)


def _ours(given: Mapping[str, Any]) -> str:
    ours = Options.known_names() - KOMBU_OPTIONS
    return repr(sorted((name, value) for name, value in given.items() if name in ours))
