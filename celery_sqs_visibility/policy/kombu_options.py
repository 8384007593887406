"""The options of kombu's own SQS transport that keep their name and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_parsers import (
    Seconds,
    exchanges,
    flag,
    instance_of,
    mapping,
    queues,
    text,
)
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS


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
    predefined_queues: Mapping[str, Mapping[str, Any]] = option(
        {},
        queues,
        "Queues by name, each with 'url' and, if wanted, 'region', 'access_key_id', 'secret_access_key', "
        "'session_token'. With it no queue is looked up or created.",
    )
    sqs_creation_attributes: Mapping[str, Any] = option(
        {}, mapping, "Attributes for queues that are created, as for the API action CreateQueue."
    )
    queue_tags: Mapping[str, str] = option({}, mapping, "Tags for queues that are created.")
    supports_fanout: bool = option(
        False,
        flag,
        "Whether fanout exchanges, and so `Broadcast` queues, are SNS topics; otherwise they are refused.",
    )
    predefined_exchanges: Mapping[str, Mapping[str, Any]] = option(
        {},
        exchanges,
        "Fanout exchanges by name, each with the 'arn' of its topic and, if wanted, 'region', "
        "'access_key_id', 'secret_access_key', 'session_token'. With it no topic is created, and no "
        "subscription swept.",
    )
    client_config: Mapping[str, Any] = option(
        {}, mapping, "Options of botocore.config.Config for every client."
    )
    fetch_message_attributes: Any = option(
        None,
        instance_of((str, list, tuple, Mapping), "a list of names or a mapping of lists"),
        "Attributes to receive with each message: a list of system attributes, or a mapping with "
        "'MessageSystemAttributeNames' and 'MessageAttributeNames'.",
    )
    sqs_base64_encoding: bool = option(
        True, flag, "Whether sent messages are base64-encoded, as kombu does; both kinds are understood."
    )
    sts_role_arn: str | None = option(None, text, "A role to assume.")
    sts_token_timeout: int = option(
        900,
        Seconds(900, VISIBILITY_HORIZON_SECONDS, whole=True),
        "How long the role's credentials are good for.",
    )
    sts_token_buffer_time: int = option(
        0, Seconds(0, VISIBILITY_HORIZON_SECONDS, whole=True), "How much earlier than that they are renewed."
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
