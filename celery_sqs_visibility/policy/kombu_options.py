"""The options of kombu's own SQS transport that keep their name and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_keys import check_keys, set_keys
from celery_sqs_visibility.policy.option_parsers import (
    Seconds,
    account,
    flag,
    instance_of,
    mapping,
    queue_attributes,
    tags,
    text,
)
from celery_sqs_visibility.policy.predefined_exchanges import parse_predefined_exchanges
from celery_sqs_visibility.policy.predefined_queues import (
    BackoffPolicy,
    PredefinedQueue,
    parse_predefined_queues,
    predefined_queue,
)
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

_names = instance_of((str, list, tuple, Mapping), "a list of names or a mapping of lists")


def _wanted_attributes(name: str, value: Any) -> Any:
    """`fetch_message_attributes`; a mapping has the parameters of ReceiveMessage as keys."""
    if isinstance(value, Mapping):
        check_keys(name, set_keys(value), ("MessageSystemAttributeNames", "MessageAttributeNames"))
    return _names(name, value)


@dataclass(frozen=True, kw_only=True)
class KombuOptions:
    """Where SQS is, which queues there are, and what goes with requests and messages."""

    region: str | None = option(
        None,
        text,
        "The AWS region; otherwise the profile's or the environment's; else us-east-1, with a warning.",
    )
    is_secure: bool = option(
        None,
        flag,
        "Whether to speak TLS to an endpoint that the URL gives as host and port.",
        "False",
    )
    queue_name_prefix: str = option("", text, "Put before the name of every queue that is not predefined.")
    predefined_queues: Mapping[str, PredefinedQueue] = option(
        {},
        parse_predefined_queues,
        "Queues by name, each with 'url' or 'QueueOwnerAWSAccountId' and, if wanted, 'region', "
        "'access_key_id', 'secret_access_key', 'session_token', 'sts_role_arn', 'external_id', "
        "'backoff_policy', 'backoff_tasks'. With it there are no other queues, and none is created.",
    )
    queue_owner: str | None = option(
        None,
        account,
        "The AWS account whose queues are used: its 12 digits, as text. No queue is created then.",
    )
    sqs_creation_attributes: Mapping[str, str] = option(
        {},
        queue_attributes,
        "Attributes for queues that are created, as for the API action CreateQueue; a policy may be a "
        "mapping. Those of FIFO queues are for FIFO queues alone.",
    )
    queue_tags: Mapping[str, str] = option({}, tags, "Tags for queues that are created.")
    supports_fanout: bool = option(
        False,
        flag,
        "Whether fanout exchanges, and so `Broadcast` queues, are SNS topics; otherwise they are refused.",
    )
    predefined_exchanges: Mapping[str, Mapping[str, Any]] = option(
        {},
        parse_predefined_exchanges,
        "Fanout exchanges by name, each with the 'arn' of its topic and, if wanted, 'region', "
        "'access_key_id', 'secret_access_key', 'session_token'. With it no topic is created, and no "
        "subscription swept.",
    )
    client_config: Mapping[str, Any] = option(
        {}, mapping, "Options of botocore.config.Config for every client."
    )
    fetch_message_attributes: Any = option(
        None,
        _wanted_attributes,
        "Attributes to receive with each message: a list of system attributes, or a mapping with "
        "'MessageSystemAttributeNames' and 'MessageAttributeNames'.",
    )
    sqs_base64_encoding: bool = option(
        True, flag, "Whether sent messages are base64-encoded, as kombu does; both kinds are understood."
    )
    sts_role_arn: str | None = option(None, text, "A role to assume.")
    external_id: str | None = option(None, text, "The external id that the role's trust policy asks for.")
    sts_token_timeout: int = option(
        900,
        Seconds(900, VISIBILITY_HORIZON_SECONDS, whole=True),
        "How long the role's credentials are good for.",
    )
    sts_token_buffer_time: int = option(
        0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS - 1, whole=True),
        "How much earlier than that they are renewed; less than `sts_token_timeout`.",
    )

    def __post_init__(self) -> None:
        if self.predefined_exchanges and not self.supports_fanout:
            raise OptionError(
                "predefined_exchanges names topics for fanout exchanges, and supports_fanout is not set: set "
                "it to True, or remove predefined_exchanges"
            )
        if self.sts_token_buffer_time >= self.sts_token_timeout:
            raise OptionError(
                "expected sts_token_buffer_time to be less than sts_token_timeout "
                f"({self.sts_token_timeout}), got {self.sts_token_buffer_time}: the credentials would be "
                "renewed without end"
            )
        if self.external_id and not self.sts_role_arn:
            raise OptionError("expected sts_role_arn beside external_id, which means nothing alone")

    def backoff_policy(self, queue: str, task: str) -> BackoffPolicy | None:
        """The policy for the failures of that task in the queue of Celery's name, if one names the task."""
        predefined = predefined_queue(self.predefined_queues, queue, self.queue_name_prefix)
        policy = predefined.backoff if predefined else None
        return policy if policy and task in policy.tasks else None
