"""Types for type checkers, which find misspelt names and values of the wrong type.

tests/unit/policy/test_typed_options.py compares their keys with the actual options and settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

#: Seconds, a list of seconds by attempt, `callable(retries, exc)`, or its dotted path.
Delay: TypeAlias = float | Sequence[float] | str | Callable[[int, BaseException], float | None] | None


class SharedOptionsDict(TypedDict, total=False):
    """Options of the transport, and of one queue."""

    visibility_timeout: int
    heartbeat_interval: float
    error_visibility_timeout: Delay
    wait_time_seconds: int
    polling_interval: float
    polling_interval_max: float
    dead_letter_queue: str | None
    when_exhausted: Literal["delete", "keep"]


class QueueOptionsDict(SharedOptionsDict, total=False):
    """A value of the option `queues`."""

    weight: int
    max_running: int | None


class _AccessKey(TypedDict, total=False):
    region: str
    access_key_id: str
    secret_access_key: str
    session_token: str


class PredefinedQueueDict(_AccessKey, total=False):
    """A value of the option `predefined_queues`."""

    url: str
    QueueOwnerAWSAccountId: str
    sts_role_arn: str
    external_id: str
    backoff_policy: Mapping[int, float]
    backoff_tasks: Sequence[str]


class PredefinedExchangeDict(_AccessKey, total=False):
    """A value of the option `predefined_exchanges`."""

    arn: str


DashedOptions = TypedDict(
    "DashedOptions",
    {"client-config": Mapping[str, Any], "sqs-creation-attributes": Mapping[str, Any]},
    total=False,
)


class TransportOptions(DashedOptions, SharedOptionsDict, total=False):
    """`broker_transport_options`: docs/options.md says what each does. The last ones are kombu's own."""

    decompressed_max_bytes: int
    remote_control: bool
    metrics: Sequence[Literal["prometheus", "opentelemetry", "emf"]] | None
    shutdown_timeout: float | None
    when_lost: Literal["continue", "terminate"]
    queues: Mapping[str, QueueOptionsDict]
    queue_order: Literal["fair", "strict", "weighted"]
    coordination_store: str | None
    message_adapter: str | None
    payload_store: str | None
    http_address: str | None
    region: str | None
    is_secure: bool
    queue_name_prefix: str
    predefined_queues: Mapping[str, PredefinedQueueDict]
    QueueOwnerAWSAccountId: str | None
    queue_tags: Mapping[str, str]
    supports_fanout: bool
    predefined_exchanges: Mapping[str, PredefinedExchangeDict]
    fetch_message_attributes: Sequence[str] | Mapping[str, Sequence[str]]
    sqs_base64_encoding: bool
    sts_role_arn: str | None
    external_id: str | None
    sts_token_timeout: int
    sts_token_buffer_time: int

    body_encoding: str | None
    callback: Callable[..., Any]
    client_properties: Mapping[str, Any]
    confirm_publish: bool
    connect_retries_timeout: float
    deadletter_queue: str | None
    errback: Callable[..., Any]
    interval_max: float
    interval_start: float
    interval_step: float
    max_retries: int | None
    on_revive: Callable[..., Any]
    retry_errors: Sequence[type[BaseException]]


class TaskSettings(TypedDict, total=False):
    """The settings of a `VisibilityTask` that Celery does not know: `@app.task(**TaskSettings(...))`."""

    error_visibility_timeout: Delay
    when_exhausted: Literal["delete", "keep"] | None
    when_lost: Literal["continue", "terminate"] | None
    inactivity_timeout: float | None
    exclusive: bool | Callable[[Any, Any], str | int]
    exclusive_ttl: float | None
    brake_on: Sequence[type[BaseException]]
    brake: str | None
    sqs_event: str | Sequence[str] | None
    sqs_event_per: Literal["record", "message"]
