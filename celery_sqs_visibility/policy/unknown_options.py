"""Names that are not transport options, and what to do instead. Imported only if one is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import unknown

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


def refusals(given: Mapping[str, Any], valid: Collection[str]) -> list[OptionError]:
    """The errors for names that are not options. One with a remedy is ignored if its value is empty."""
    return [_refusal(name, valid) for name, value in given.items() if value or name not in REMEDIES]


def _refusal(name: str, valid: Collection[str]) -> OptionError:
    if remedy := REMEDIES.get(name) or (OF_ANOTHER_TRANSPORT if name in OTHER_TRANSPORTS else ""):
        return OptionError(f"there is no transport option {name!r}: {remedy}")
    return unknown(f"transport option {name!r}", name, valid)
