"""The options `predefined_queues` and `predefined_exchanges`: their names, addresses and access."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import (
    ACCESS_KEY_PAIRS,
    Seconds,
    account,
    all_of,
    check_keys,
    check_pairs,
    mapping,
    set_keys,
)
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX, region_of, sqs_name
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

#: The account that owns a queue, as GetQueueUrl calls it.
OWNER: Final = "QueueOwnerAWSAccountId"

#: The keys of a queue whose values are text, and the fields of `PredefinedQueue` that they are for.
TEXTS: Final = {
    "url": "url",
    "region": "region",
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "session_token": "session_token",
    "sts_role_arn": "sts_role_arn",
    "external_id": "external_id",
    OWNER: "owner",
}

#: kombu's retry delays.
BACKOFF: Final = ("backoff_policy", "backoff_tasks")

#: Keys that require another key.
NEEDED: Final = (
    *ACCESS_KEY_PAIRS,
    ("external_id", "sts_role_arn"),
    ("backoff_policy", "backoff_tasks"),
    ("backoff_tasks", "backoff_policy"),
)

#: Colons in a topic's ARN: arn:aws:sns:region:account:name.
ARN_COLONS: Final = 5

#: The keys of an exchange.
EXCHANGE_KEYS: Final = ("arn", "region", "access_key_id", "secret_access_key", "session_token")

#: Amazon's own endpoint of a region.
AMAZONS_HOST: Final = re.compile(r"sqs\.([a-z0-9-]+)\.(amazonaws\.com(\.cn)?|api\.aws)")

#: The region in one of Amazon's URLs: no other region knows the queue.
_URL_OF_AMAZON: Final = re.compile(f"https://{AMAZONS_HOST.pattern}/")

_backoff_seconds = Seconds(0, VISIBILITY_HORIZON_SECONDS)


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """kombu's `backoff_policy`, for the `backoff_tasks`: a delay rule for the failures of these tasks."""

    tasks: frozenset[str]
    seconds: Mapping[int, float] = field(hash=False)  # by attempt, from 1 on

    def __call__(self, retries: int, exc: BaseException) -> float | None:  # noqa: ARG002 - see `DelayRule`
        """The seconds of this attempt; `None` where the policy has none."""
        return self.seconds.get(retries + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The region of a predefined queue or topic, and an access key. `None` means the connection's setting."""

    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PredefinedQueue(Access):
    """A value of the option `predefined_queues`.

    Attributes:
        url: `None` to ask SQS for it, by `owner` and the queue's name.
        owner: the number of the AWS account that owns the queue.
    """

    url: str | None = None
    sts_role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    owner: str | None = None
    backoff: BackoffPolicy | None = None


@dataclass(frozen=True, slots=True)
class PredefinedTopic(Access):
    """A value of the option `predefined_exchanges`."""

    arn: str


def predefined_queue(queues: Mapping[str, PredefinedQueue], name: str, prefix: str) -> PredefinedQueue | None:
    """Find a queue by Celery's name or, as kombu does, by SQS's name."""
    return queues.get(name) or queues.get(sqs_name(name, prefix))


def parse_predefined_queues(name: str, value: Any) -> dict[str, PredefinedQueue]:
    """Parse the option `predefined_queues`: queues by the names that the user wrote.

    Raises:
        OptionError: names the queue and the key, never a value that may be secret.
    """
    given = mapping(name, value)
    parsed = all_of(partial(_parse, f"{name}[{queue!r}]", queue, own) for queue, own in given.items())
    return dict(zip(map(str, given), parsed, strict=True))


def _parse(where: str, queue: str, value: Any) -> PredefinedQueue:
    given = _given(where, value)
    _check_texts(where, given)
    check_pairs(where, given, NEEDED)
    texts = {attribute: given[key] for key, attribute in TEXTS.items() if key in given}
    url = texts.get("url", "")
    if url and url.endswith(FIFO_SUFFIX) != str(queue).endswith(FIFO_SUFFIX):
        raise OptionError(
            f"expected the name of {where} and its url {url!r} to agree: the names of FIFO queues, and of no "
            "others, end with .fifo"
        )
    if amazon := _URL_OF_AMAZON.match(url):
        texts.setdefault("region", amazon[1])
    return PredefinedQueue(**texts, backoff=_backoff(where, given))


def _given(where: str, value: Any) -> dict[str, Any]:
    """The keys that are set, and their values."""
    is_mapping = isinstance(value, Mapping)
    given = set_keys(value) if is_mapping else {}
    check_keys(where, given, (*TEXTS, *BACKOFF))
    if not given.keys() & {"url", OWNER}:
        empty = [f", of which {key!r} is empty" for key in value if key not in given] if is_mapping else []
        got = f"the keys {sorted(map(str, value))}" if is_mapping else f"a {type(value).__name__}"
        got += "".join(empty)
        raise OptionError(f"expected {where} to be a mapping with a 'url' or a {OWNER!r}, got {got}")
    return given


def _check_texts(where: str, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key == OWNER:
            account(f"{where}[{key!r}]", value)
        if key in TEXTS and not isinstance(value, str):
            raise OptionError(f"expected {where}[{key!r}] to be text, got a {type(value).__name__}")


def _backoff(where: str, given: Mapping[str, Any]) -> BackoffPolicy | None:
    policy, tasks = (given.get(key) for key in BACKOFF)
    if policy is None:
        return None
    if not isinstance(tasks, Iterable) or isinstance(tasks, (str, bytes)):
        raise OptionError(f"expected {where}['backoff_tasks'] to be a list of names of tasks, got {tasks!r}")
    policy_name = f"{where}['backoff_policy']"
    return BackoffPolicy(
        frozenset(map(str, tasks)),
        {
            _attempt(policy_name, attempt): _backoff_seconds(f"{policy_name}[{attempt!r}]", seconds)
            for attempt, seconds in mapping(policy_name, policy).items()
        },
    )


def _attempt(name: str, value: Any) -> int:
    """The number of an attempt, as text if the settings come from JSON."""
    if str(value).isdecimal() and int(value) > 0:
        return int(value)
    raise OptionError(f"expected the keys of {name} to be numbers of attempts, from 1 on, got {value!r}")


def parse_predefined_exchanges(name: str, value: Any) -> dict[str, PredefinedTopic]:
    """Parse the option `predefined_exchanges`: topics by the names that the user wrote.

    Raises:
        OptionError: names the exchange and the key, never a value that may be secret.
    """
    return {
        exchange: _parse_exchange(name, exchange, settings)
        for exchange, settings in mapping(name, value).items()
    }


def _parse_exchange(name: str, exchange: str, settings: Any) -> PredefinedTopic:
    where = f"{name}[{exchange!r}]"
    given = set_keys(settings) if isinstance(settings, Mapping) else {}
    check_keys(where, given, EXCHANGE_KEYS)
    arn = str(given.get("arn"))
    if arn.count(":") != ARN_COLONS or not arn.startswith("arn:") or ":sns:" not in arn:
        raise OptionError(f"expected {where} to be a mapping with an 'arn', that of an SNS topic")
    if arn.endswith(FIFO_SUFFIX) != str(exchange).endswith(FIFO_SUFFIX):
        raise OptionError(
            f"expected the name {exchange!r} in {name} and its arn {arn!r} to agree: "
            "the names of FIFO topics, and of no others, end with .fifo"
        )
    check_pairs(where, given, ACCESS_KEY_PAIRS)
    # Not the connection's region: a topic exists only in its own.
    return PredefinedTopic(**{"region": region_of(arn), **given})
