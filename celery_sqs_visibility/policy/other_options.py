"""Names in `broker_transport_options` that are not ours: other people's, and those to be refused."""

from __future__ import annotations

from typing import Final

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

_CREDENTIALS = (
    "credentials are no options: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary ones, "
    "AWS_SESSION_TOKEN in the environment, use a profile or a role, or write sqs://KEY:SECRET@ as broker_url"
)
_ENDPOINT = "set AWS_ENDPOINT_URL_SQS in the environment, or write sqs://KEY:SECRET@host:port// as broker_url"
_PROFILE = "set AWS_PROFILE in the environment"

#: What to do in place of options of kombu's SQS transport that we do not support, and of boto3's arguments.
REMEDIES: Final = {
    "queue_order_strategy": "it is of kombu's Redis transport; use queue_order",
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
