"""The option `predefined_exchanges`: fanout exchanges by name, with the topic and the access of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_keys import ACCESS_KEY_PAIRS, check_keys, check_pairs, set_keys
from celery_sqs_visibility.policy.option_parsers import mapping
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

#: Colons in a topic's ARN: arn:aws:sns:region:account:name.
ARN_COLONS: Final = 5

#: The keys of an exchange.
KEYS: Final = ("arn", "region", "access_key_id", "secret_access_key", "session_token")


def parse_predefined_exchanges(name: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    """The exchanges; the name of each ends with .fifo only if its arn does.

    Raises:
        OptionError: naming the exchange and the key, without a value that may be secret.
    """
    for exchange, settings in mapping(name, value).items():
        where = f"{name}[{exchange!r}]"
        given = set_keys(settings) if isinstance(settings, Mapping) else {}
        check_keys(where, given, KEYS)
        arn = str(given.get("arn"))
        if arn.count(":") != ARN_COLONS or not arn.startswith("arn:") or ":sns:" not in arn:
            raise OptionError(f"expected {where} to be a mapping with an 'arn', that of an SNS topic")
        if arn.endswith(FIFO_SUFFIX) != str(exchange).endswith(FIFO_SUFFIX):
            raise OptionError(
                f"expected the name {exchange!r} in {name} and its arn {arn!r} to agree: "
                "the names of FIFO topics, and of no others, end with .fifo"
            )
        check_pairs(where, given, ACCESS_KEY_PAIRS)
    return value  # type: ignore[no-any-return]
