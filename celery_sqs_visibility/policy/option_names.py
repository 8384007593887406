"""Names of options: foreign, refused and misspelt ones.

A wrong name, or a wrong key of an option that is a mapping, is refused with the nearest valid one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from celery_sqs_visibility.errors import OptionError

T = TypeVar("T")


#: Options of kombu and Celery in the same mapping.
OTHER_PEOPLES_OPTIONS: Final = frozenset(
    {
        "body_encoding",
        "callback",
        "client_properties",
        "confirm_publish",
        "connect_retries_timeout",
        "deadletter_queue",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "on_revive",
        "retry_errors",
    }
)

#: Those that kombu adds to a connection's, as it publishes with a retry policy.
RETRY_POLICY: Final = frozenset({"interval_max", "interval_start", "interval_step", "max_retries"})

_CREDENTIALS = (
    "credentials are no options: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary ones, "
    "AWS_SESSION_TOKEN in the environment, use a profile or a role, or write sqs://KEY:SECRET@ as broker_url"
)
_ENDPOINT = "set AWS_ENDPOINT_URL_SQS in the environment, or write sqs://KEY:SECRET@host:port// as broker_url"
_PROFILE = "set AWS_PROFILE in the environment"

#: Remedies for options of kombu's SQS transport that we do not support, and for boto3's arguments.
REMEDIES: Final = {
    **dict.fromkeys(
        ("backoff_policy", "backoff_tasks"),
        "it belongs to a queue of predefined_queues; for all queues and tasks there is "
        "error_visibility_timeout, of the transport or of a task",
    ),
    "port": "put the port into broker_url: sqs://KEY:SECRET@host:port//",
    "regioninfo": "it is an option of boto 2; use region",
    "region_name": "use region",
    "aws_region": "use region",
    **dict.fromkeys(("profile", "profile_name", "aws_profile"), _PROFILE),
    **dict.fromkeys(("endpoint", "endpoint_url", "aws_endpoint_url", "host", "hostname"), _ENDPOINT),
    **{
        prefix + name: _CREDENTIALS
        for prefix in ("", "aws_")
        for name in ("access_key", "access_key_id", "secret_key", "secret_access_key", "session_token")
    },
    **dict.fromkeys(("weight", "max_running"), "give it to a queue, within the option queues"),
    "use_ssl": "use is_secure, for an endpoint that broker_url names",
    "verify": "name the file of trusted certificates in the environment, as AWS_CA_BUNDLE",
    "role_arn": "use sts_role_arn",
    **dict.fromkeys(
        ("connect_timeout", "max_pool_connections", "proxies", "read_timeout", "retries", "user_agent_extra"),
        "it is an option of botocore.config.Config: put it into client-config",
    ),
}

#: Options of kombu's Redis and AMQP transports.
OTHER_TRANSPORTS: Final = frozenset(
    """
    ack_emulation authentication channel_max client_name credential_provider db fanout_patterns fanout_prefix
    frame_handler frame_max frame_writer global_keyprefix health_check_interval heartbeat insist locale
    login_method login_response master_name max_connections min_other_sentinels on_blocked on_open on_tune_ok
    on_unblocked password priority_steps queue_order_strategy reauth_check_interval retry retry_on_error
    retry_on_timeout sentinel_fanout_compat sentinel_kwargs sep socket_connect_timeout socket_keepalive
    socket_keepalive_options socket_settings socket_timeout ssl unacked_index_key unacked_key
    unacked_mutex_expire unacked_mutex_key unacked_restore_interval unacked_restore_limit
    unacked_restore_throttle userid username virtual_host write_timeout
    """.split()  # noqa: SIM905 - a line for each would be long
)

OF_ANOTHER_TRANSPORT: Final = (
    "it belongs to kombu's Redis or AMQP transport: docs/coming-from-redis-and-rabbitmq.md says what to do"
)

#: The least likeness of a misspelt name. RedrivePolicy and RedriveAllowPolicy are less alike.
MISSPELT: Final = 0.85

#: The keys of an access key, each with the one that it means nothing without.
ACCESS_KEY_PAIRS: Final = (
    ("access_key_id", "secret_access_key"),
    ("secret_access_key", "access_key_id"),
    ("session_token", "access_key_id"),
)

#: The names that are no names in Python, or not of our style.
_NAMES = {
    "client_config": "client-config",
    "sqs_creation_attributes": "sqs-creation-attributes",
    "queue_owner": "QueueOwnerAWSAccountId",
}


def option_name(field_name: str) -> str:
    """The name a user writes for a field of `Options`."""
    return _NAMES.get(field_name, field_name)


def set_keys(value: Mapping[Any, Any]) -> dict[Any, Any]:
    """The keys that are set, as kombu sees it, and their values."""
    return {key: inner for key, inner in value.items() if inner is not None and inner != ""}


def together(errors: Sequence[OptionError]) -> OptionError:
    """One error that says all of these, each once."""
    said = [sentence for error in errors for sentence in error.sentences or (str(error),)]
    sentences = tuple(dict.fromkeys(said))
    if len(sentences) == 1:
        return errors[0]
    listed = "; ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences, 1))
    error = OptionError(f"{len(sentences)} options are wrong: {listed}")
    error.sentences = sentences
    return error


def all_of(steps: Iterable[Callable[[], T]]) -> list[T]:
    """What the steps return. Raises one `OptionError` with the sentences of all that fail so."""
    done, errors = [], []
    for step in steps:
        try:
            done.append(step())
        except OptionError as error:
            errors.append(error)
    if errors:
        raise together(errors) from None
    return done


def unknown(noun: str, name: object, valid: Collection[str]) -> OptionError:
    """The error about a name that is none of the valid ones."""
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid ones are: {', '.join(valid)}"
    return OptionError(f"unknown {noun}: {hint}")


def check_keys(where: str, given: Iterable[Any], valid: Collection[str], noun: str = "key") -> None:
    """Refuse the keys that are none of the valid ones. No value is shown: it may be a secret."""
    if wrong := [unknown(f"{noun} {key!r} in {where}", key, valid) for key in given if key not in valid]:
        raise together(wrong)


def check_spelling(where: str, given: Iterable[Any], known: Collection[str], noun: str) -> None:
    """Refuse a key that is nearly a known one. Others pass, since AWS may have new ones."""
    for key in given:
        if key not in known and difflib.get_close_matches(str(key), known, n=1, cutoff=MISSPELT):
            raise unknown(f"{noun} {key!r} in {where}", key, known)


def check_pairs(where: str, given: Collection[Any], pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse a key without the one that it needs."""
    for key, needed in pairs:
        if key in given and needed not in given:
            raise OptionError(
                f"expected {where} to have {needed!r} beside {key!r}, which means nothing alone"
            )
