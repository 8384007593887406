"""The transport options: each declared once, with bounds, default and documentation.

`make reference` generates docs/options.md from them (tests/support/reference.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache, partial
from typing import Any, Final, Literal

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.control_names import MAX_PREFIX_CHARACTERS
from celery_sqs_visibility.policy.exclusive import StoreAddress, store_address
from celery_sqs_visibility.policy.option_parsers import (
    KOMBU_OPTIONS,
    ExporterNames,
    HTTPAddress,
    OneOf,
    Parser,
    Seconds,
    Whole,
    account,
    all_of,
    check_keys,
    control_prefix,
    delay,
    dotted_path,
    flag,
    http_address,
    instance_of,
    mapping,
    message_attributes,
    option,
    option_name,
    payload_store,
    queue_attributes,
    queue_name,
    set_keys,
    tags,
    text,
    together,
    when_exhausted,
    when_lost,
)
from celery_sqs_visibility.policy.payload_pointers import NO_PAYLOADS, ReadablePayloads
from celery_sqs_visibility.policy.predefined import (
    BackoffPolicy,
    PredefinedQueue,
    PredefinedTopic,
    parse_predefined_exchanges,
    parse_predefined_queues,
    predefined_queue,
)
from celery_sqs_visibility.policy.queue_names import sqs_name
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES, VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retries import DelayRule

__all__ = ["OptionError", "Options", "option_name"]

#: How many queues' options are cached: reply queues always have new names.
KEPT_QUEUES: Final = 1000

_HORIZON = " (SQS's 12 hours)"

VISIBILITY_TIMEOUT_SECONDS: Final = 120

#: A request to extend needs time to arrive.
MIN_HEARTBEAT_SECONDS: Final = 0.1

#: The largest weight: more would be "strict" by another name.
MAX_WEIGHT: Final = 1000

#: More concurrent runs than any worker has.
MAX_RUNNING: Final = 10_000

#: The most bytes of a decompressed body by default. At worst a run takes 250 MB (short texts in JSON), or
#: 400 MB (in MessagePack): tests/worker/test_bombs.py.
DECOMPRESSED_BYTES: Final = 8 * MESSAGE_BYTES

#: How often queues are counted: by one worker for all, or by each worker.
SAMPLE_SECONDS: Final = 60.0
SAMPLE_ALONE_SECONDS: Final = 300.0

#: The option `queue_order`: as messages come; each queue before those listed after it; by weight.
Order = Literal["fair", "strict", "weighted"]

ORDERS: Final = ("fair", "strict", "weighted")


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options that exist both for all queues (`Options`) and for one (`QueueOptions`)."""

    visibility_timeout: int = option(
        VISIBILITY_TIMEOUT_SECONDS,
        Seconds(1, VISIBILITY_HORIZON_SECONDS, whole=True, why=_HORIZON, clamp=True),
        "How long a received message stays hidden. The heartbeat renews it, so this is how long a killed "
        "worker's messages stay hidden. More than SQS's 12 hours counts as 12 hours, with a warning. Lower "
        "it to get them back sooner; raise it if workers may stall for longer.",
    )
    heartbeat_interval: float = option(
        None,
        Seconds(MIN_HEARTBEAT_SECONDS, VISIBILITY_HORIZON_SECONDS, zero=True),
        "How long before its deadline a held message is extended; 0 switches the heartbeat off. Raise it if "
        "requests to SQS are slow or throttled.",
        "visibility_timeout / 3",
    )
    error_visibility_timeout: DelayRule | None = option(
        None,
        delay,
        "How long a failed message stays hidden: seconds, a list by attempt (the last repeats), or the "
        "dotted path of a callable(retries, exc). None: until its visibility timeout ends. Set it to choose "
        "retry delays.",
    )
    wait_time_seconds: int = option(
        20,
        Seconds(0, WAIT_TIME_SECONDS, whole=True, why=" (SQS's longest poll)"),
        "How long a poll waits for a message. Lower it only if a proxy cuts off longer requests: each poll "
        "costs a request.",
    )
    polling_interval: float = option(
        0.0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "How long to sleep after an empty poll. With 0, polls that return empty at once are a second apart. "
        "Set it if fewer requests matter more than a prompt start of tasks.",
    )
    polling_interval_max: float = option(
        None,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "The longest sleep after empty polls: the sleep doubles while the queue stays empty, and ends early "
        "when a hidden message is due back. Set it for rarely used queues.",
        "polling_interval",
    )
    dead_letter_queue: str | None = option(
        None,
        queue_name,
        "The Celery name of a dead-letter queue for queues without a redrive policy, which is looked up or "
        "created when a consumer starts. A redrive policy takes precedence. Set it if you can't change the "
        "queues' policies.",
    )
    when_exhausted: str = option(
        "delete",
        when_exhausted,
        "What happens to a message after its last attempt if there is no dead-letter queue. A kept message "
        "comes back every hour, without a run, until its retention ends; in a FIFO queue its group waits "
        "behind it. A task's own `when_exhausted` takes precedence. Set it to 'keep' if no message may be "
        "deleted unseen.",
    )

    def __post_init__(self) -> None:
        if errors := [OptionError(sentence) for sentence in self.contradictions()]:
            raise together(errors)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between these options."""
        if self.heartbeat_interval >= self.visibility_timeout:
            yield (
                "expected heartbeat_interval to be less than visibility_timeout "
                f"({self.visibility_timeout}), got {self.heartbeat_interval:g}: a message has to be extended "
                "before it comes back"
            )
        if self.polling_interval_max < self.polling_interval:
            yield (
                f"expected polling_interval_max to be at least polling_interval ({self.polling_interval:g}), "
                f"got {self.polling_interval_max:g}"
            )


@dataclass(frozen=True, kw_only=True)
class QueueOptions(SharedOptions):
    """The options of one queue, checked.

    Attributes:
        place: of the queue's entry in the option `queues`, from 0; queues without an entry come last.
    """

    weight: int = option(1, Whole(1, MAX_WEIGHT), "Its share of the turns under queue_order 'weighted'.")
    max_running: int | None = option(
        None, Whole(1, MAX_RUNNING), "The most tasks of the queue that one worker runs at once."
    )
    place: int = 0


#: The options of a queue, by Celery's name of it.
OptionsOfQueue = Callable[[str], QueueOptions]

#: The checked values of the option `queues`: options by field, by the name or glob of the queues.
Entries = Mapping[str, Mapping[str, Any]]


def queue_entries(name: str, value: Any) -> Entries:
    """The option `queues`: a mapping of names or globs to mappings of options."""
    given = instance_of(Mapping, "a mapping of queues to their options")(name, value)
    return dict(all_of(partial(_entry, name, glob, own) for glob, own in given.items()))


def _entry(option: str, glob: Any, options: Any) -> tuple[str, dict[str, Any]]:
    instance_of(str, "a mapping whose keys are names of queues, or globs")(option, glob)
    name = f"{option}[{glob!r}]"
    declared = {f.name: f.metadata["parse"] for f in fields(QueueOptions) if f.metadata}
    given = instance_of(Mapping, "a mapping of options")(name, options)
    check_keys(name, given, sorted(declared), "option")
    return glob, _parsed(declared, given, lambda key: f"{name}[{key!r}]")


def _parsed(
    parsers: Mapping[str, Parser], given: Mapping[str, Any], shown: Callable[[str], str] = str
) -> dict[str, Any]:
    """Parse the options that are set. Errors name an option as `shown`."""
    given = {name: value for name, value in set_keys(given).items() if name in parsers}
    parsed = all_of(partial(parsers[name], shown(name), value) for name, value in given.items())
    return dict(zip(given, parsed, strict=True))


def entry_for(entries: Entries, queue: str) -> str | None:
    """The key of the queue's entry: its own name, or the first glob that matches."""
    if queue in entries:
        return queue
    return next((glob for glob in entries if fnmatchcase(queue, glob)), None)


def options_of_entry(entries: Entries, glob: str | None, shared: SharedOptions) -> QueueOptions:
    """The options of an entry, completed by the `shared` ones; `glob` is `None` for queues without an entry.

    Raises:
        OptionError: they contradict each other.
    """
    own = {} if glob is None else dict(entries[glob])
    # A heartbeat that is off for all queues stays off.
    if "visibility_timeout" in own and shared.heartbeat_interval:
        own.setdefault("heartbeat_interval", default_heartbeat(own["visibility_timeout"]))
    if "polling_interval" in own:
        own.setdefault("polling_interval_max", max(own["polling_interval"], shared.polling_interval_max))
    inherited = {f.name: getattr(shared, f.name) for f in fields(SharedOptions)}
    place = len(entries) if glob is None else list(entries).index(glob)
    try:
        return QueueOptions(**{**inherited, **own, "place": place})
    except OptionError as error:
        raise OptionError(f"in queues[{glob!r}]: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Options(SharedOptions):
    """`broker_transport_options`, checked. Durations are seconds. Dashes in names are underscores here."""

    decompressed_max_bytes: int = option(
        DECOMPRESSED_BYTES,
        Whole(MESSAGE_BYTES, floats=False),
        "The maximum size of a message's body after decompression; a payload in S3 may have 64 MiB. A "
        "larger message is bad. Raise it for larger tasks, and give workers enough memory.",
    )
    remote_control: bool = option(
        False,
        flag,
        "Whether workers obey [remote control](remote-control.md), each through its own queue. Workers and "
        "callers need it. Set it to use `celery inspect`, `celery control`, Flower, or `celery sqs pause`.",
    )
    control_prefix: str = option(
        "celery-control-",
        control_prefix,
        "The beginning of the names of remote control's queues, after `queue_name_prefix`.",
        internal=True,
    )
    metrics: tuple[str, ...] | None = option(
        None,
        ExporterNames(),
        "The exporters of a worker's [metrics](metrics.md); `[]` for none. Set it to choose their "
        "destination.",
        "['prometheus'] where `http_address` is set and prometheus_client is installed",
    )
    shutdown_timeout: float | None = option(
        None,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "How long running tasks may continue after SIGTERM before their messages are released. The grace "
        "period comes from the environment variable `TERMINATION_GRACE_PERIOD_SECONDS`. Set it to end runs "
        "earlier.",
        "25, or 5 s less than the grace period",
    )
    when_lost: str = option(
        "continue",
        when_lost,
        "What happens to a running task whose message another worker may have. 'continue': the run "
        "continues, and `self.visibility.lost` is true. 'terminate': the worker ends the run, except in the "
        "pools threads and solo. Set it to 'terminate' if concurrent runs do harm.",
    )
    queues: Entries = option(
        {},
        queue_entries,
        "Options of [single queues](several-queues.md), by Celery name or glob. A queue's own name takes "
        "precedence, then the first matching glob. Set it if queues differ in timeouts, polls or limits.",
    )
    queue_order: Order = option(
        None,
        OneOf(ORDERS),
        "Which [queue's message runs next](several-queues.md): the first to arrive, that of the queue that "
        "`queues` lists first, or by `weight`. Set it if some queues are more urgent.",
        "'fair', or 'weighted' if a queue has a weight",
    )
    coordination_store: StoreAddress | None = option(
        None,
        store_address,
        "The store through which processes agree: `dynamodb://TABLE`, with `?region=` if it differs from "
        "SQS's, `redis://HOST` or `rediss://HOST`; in cluster mode any node. Set it for exclusive tasks, "
        "several beats, or metrics of many workers.",
    )
    message_adapter: str | None = option(
        None,
        dotted_path,
        "The dotted path of a callable(body, attributes) that turns messages that are neither Celery's nor "
        "a task's `sqs_event` into tasks: it returns (task, args, kwargs), or None. Set it if other "
        "programs send to the queue.",
    )
    payload_store: ReadablePayloads | None = option(
        None,
        payload_store,
        "Where payloads that are too large for SQS go in S3: `s3://BUCKET`, or `s3://BUCKET/PREFIX/` if "
        "several apps share a bucket. Producers and workers need it. Workers read only these payloads: a "
        "worker's prefix must be the producers' prefix, or its beginning. Set it if tasks may have more "
        "than 1 MiB of arguments.",
    )
    http_address: HTTPAddress | None = option(
        None,
        http_address,
        "The address at which a worker answers `GET /healthz` and `/readyz` ([health](deploys.md#health)), "
        "and `/metrics` ([metrics](metrics.md)): ':8080' for this host alone, '0.0.0.0:8080' or '[::]:8080' "
        "for all hosts. Set it for Prometheus, or for probes from other hosts.",
    )
    region: str | None = option(
        None,
        text,
        "The AWS region. Default: that of the profile or the environment, or else us-east-1, with a "
        "warning. Set it if the environment has no region, or the wrong one.",
    )
    is_secure: bool = option(
        None,
        flag,
        "Whether to use TLS for an endpoint that the URL gives as host and port. Set it if that endpoint "
        "speaks HTTPS.",
        "False",
    )
    queue_name_prefix: str = option(
        "",
        text,
        "A prefix for the names of all queues that are not predefined. Set it if several environments share "
        "an account.",
    )
    predefined_queues: Mapping[str, PredefinedQueue] = option(
        {},
        parse_predefined_queues,
        "Queues by name, each with 'url' or 'QueueOwnerAWSAccountId' and optionally 'region', "
        "'access_key_id', 'secret_access_key', 'session_token', 'sts_role_arn', 'external_id', "
        "'backoff_policy', 'backoff_tasks'. Only these queues can be used, and none is created. Set it if "
        "others create the queues, or for several regions or accounts.",
    )
    queue_owner: str | None = option(
        None,
        account,
        "The AWS account that owns the queues: its 12 digits, as a string. No queue is created then. Set it "
        "if the queues are in another account.",
    )
    sqs_creation_attributes: Mapping[str, str] = option(
        {},
        queue_attributes,
        "Attributes of queues that are created, as in the API action CreateQueue; a policy may be a "
        "mapping. FIFO attributes apply only to FIFO queues. Set it for encryption, or your own retention.",
    )
    queue_tags: Mapping[str, str] = option(
        {},
        tags,
        "Tags of queues that are created. Set it if costs or permissions depend on tags.",
    )
    supports_fanout: bool = option(
        False,
        flag,
        "Whether fanout exchanges, and so `Broadcast` queues, are SNS topics; otherwise both are refused. "
        "Set it to use them.",
    )
    predefined_exchanges: Mapping[str, PredefinedTopic] = option(
        {},
        parse_predefined_exchanges,
        "Fanout exchanges by name, each with the 'arn' of its topic and optionally 'region', "
        "'access_key_id', 'secret_access_key', 'session_token'. No topic is created then, and no "
        "subscription is swept. Set it if others create the topics.",
    )
    client_config: Mapping[str, Any] = option(
        {},
        mapping,
        "Options of botocore.config.Config for every client. Set it for proxies, timeouts, or a larger pool "
        "of connections.",
    )
    fetch_message_attributes: Any = option(
        None,
        message_attributes,
        "Attributes to receive with each message: a list of system attributes, or a mapping with "
        "'MessageSystemAttributeNames' and 'MessageAttributeNames'. Set it if a task or adapter reads "
        "further attributes.",
    )
    sqs_base64_encoding: bool = option(
        True,
        flag,
        "Whether sent messages are base64-encoded, as with kombu; workers read both. Set it to False to "
        "save a quarter of the bytes, once every consumer reads both.",
    )
    sts_role_arn: str | None = option(
        None,
        text,
        "A role to assume. Set it if the process's own credentials lack permission to use the queues.",
    )
    external_id: str | None = option(
        None,
        text,
        "The external id that the role's trust policy asks for. Set it if that policy has one.",
    )
    sts_token_timeout: int = option(
        900,
        Seconds(900, VISIBILITY_HORIZON_SECONDS, whole=True),
        "How long the role's credentials are valid. Raise it to renew them less often, up to the role's own "
        "limit.",
    )
    sts_token_buffer_time: int = option(
        0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS - 1, whole=True),
        "How long before their end the role's credentials are renewed; less than `sts_token_timeout`. Raise "
        "it if requests fail with expired credentials.",
    )

    @classmethod
    def known_names(cls) -> frozenset[str]:
        """The names that `broker_transport_options` may have, including those of kombu and Celery."""
        return KOMBU_OPTIONS | {option_name(f.name) for f in fields(cls)}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check `broker_transport_options`.

        Raises:
            OptionError: names the option, the value, the bound and, for a misspelt name, the nearest one.
        """
        declared = {option_name(f.name): f for f in fields(cls)}
        known, errors = cls.known_names(), []
        if unknown := {name: value for name, value in given.items() if name not in known}:
            from celery_sqs_visibility.policy.unknown_options import refusals  # noqa: PLC0415 - most have none

            errors = refusals(unknown, sorted(declared))
        parsed: dict[str, Any] = {}
        try:
            parsed = _parsed({name: f.metadata["parse"] for name, f in declared.items()}, given)
        except OptionError as error:
            errors.append(error)
        if errors:
            raise together(errors) from None
        values = {declared[name].name: value for name, value in parsed.items()}
        return cls(**_derived_defaults(values) | values)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._of_entries  # raises if a queue's options contradict each other

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between these options."""
        if self.predefined_exchanges and not self.supports_fanout:
            yield (
                "predefined_exchanges names topics for fanout exchanges, and supports_fanout is not set: set "
                "it to True, or remove predefined_exchanges"
            )
        if self.sts_token_buffer_time >= self.sts_token_timeout:
            yield (
                "expected sts_token_buffer_time to be less than sts_token_timeout "
                f"({self.sts_token_timeout}), got {self.sts_token_buffer_time}: the credentials would be "
                "renewed without end"
            )
        if self.external_id and not self.sts_role_arn:
            yield "expected sts_role_arn beside external_id, which means nothing alone"
        yield from super().contradictions()
        whole = self.whole_control_prefix
        if self.remote_control and len(whole) > MAX_PREFIX_CHARACTERS:
            yield (
                f"expected queue_name_prefix and control_prefix to have at most {MAX_PREFIX_CHARACTERS} "
                f"characters in all, since remote_control is set, got {whole!r}: shorten one"
            )
        if self.queue_order == "strict" and not self.queues:
            yield (
                "expected queues to list the queues, the most urgent first, since queue_order is 'strict', "
                "got none"
            )

    @cached_property
    def for_queue(self) -> OptionsOfQueue:
        """Returns the options of a queue, by Celery's name. Cached, because it is called for each message."""
        return lru_cache(KEPT_QUEUES)(lambda name: self._of_entries[entry_for(self.queues, name)])

    @cached_property
    def _of_entries(self) -> dict[str | None, QueueOptions]:
        globs = (*self.queues, None)
        return dict(
            zip(globs, all_of(partial(options_of_entry, self.queues, g, self) for g in globs), strict=True)
        )

    @property
    def has_turns(self) -> bool:
        """Whether a worker's queues have an order, or any queue has a limit of its own."""
        return self.queue_order != "fair" or any(each.max_running for each in self._of_entries.values())

    @property
    def longest_visibility_timeout(self) -> int:
        """The longest `visibility_timeout` of all queues."""
        return max(each.visibility_timeout for each in self._of_entries.values())

    @property
    def longest_poll(self) -> int:
        """The longest `wait_time_seconds` of all queues."""
        return max(each.wait_time_seconds for each in self._of_entries.values())

    @property
    def has_metrics(self) -> bool:
        """Whether metrics are exported. With only `http_address` set, they are, to a scraper if possible."""
        return bool(self.metrics) or (self.metrics is None and self.http_address is not None)

    @property
    def sample_seconds(self) -> float:
        """Seconds between two counts of a worker's queues for metrics."""
        return SAMPLE_ALONE_SECONDS if self.coordination_store is None else SAMPLE_SECONDS

    @property
    def readable_payloads(self) -> ReadablePayloads:
        """The objects in S3 that messages may point to."""
        return self.payload_store or NO_PAYLOADS

    @property
    def whole_control_prefix(self) -> str:
        """The prefix of control queues, including `queue_name_prefix`."""
        return sqs_name(f"{self.queue_name_prefix}{self.control_prefix}")

    def predefined_queue(self, name: str) -> PredefinedQueue | None:
        """The definition of Celery's queue in `predefined_queues`; `None` if it has none."""
        return predefined_queue(self.predefined_queues, name, self.queue_name_prefix)

    def name_at_sqs(self, name: str) -> str:
        """SQS's name of Celery's queue: the one in its URL, if it is predefined by a URL."""
        predefined = self.predefined_queue(name)
        url = predefined.url if predefined is not None else None
        return url.rpartition("/")[2] if url else sqs_name(name, self.queue_name_prefix)

    def backoff_policy(self, queue: str, task: str) -> BackoffPolicy | None:
        """The policy of kombu's for failures of the task in that queue; `None` if none names the task."""
        predefined = self.predefined_queue(queue)
        policy = predefined.backoff if predefined else None
        return policy if policy and task in policy.tasks else None


def default_heartbeat(visibility_timeout: float) -> float:
    """The default of `heartbeat_interval`: two extensions may fail."""
    return visibility_timeout / 3


def beyond_horizon(given: Mapping[str, Any]) -> dict[str, Any]:
    """The visibility timeouts longer than SQS's 12 hours, by option. The options were checked."""
    name = "visibility_timeout"
    of_queues = {f"queues[{glob!r}]": own for glob, own in (given.get("queues") or {}).items()}
    named = {name: given, **{f"{entry}[{name!r}]": own for entry, own in of_queues.items()}}
    timeouts = {option: own.get(name) or 0 for option, own in named.items()}
    return {
        option: seconds for option, seconds in timeouts.items() if float(seconds) > VISIBILITY_HORIZON_SECONDS
    }


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    queues: Entries = values.get("queues", {})
    return {
        "heartbeat_interval": default_heartbeat(values.get("visibility_timeout", VISIBILITY_TIMEOUT_SECONDS)),
        "polling_interval_max": values.get("polling_interval", 0.0),
        "is_secure": False,
        "queue_order": "weighted" if any("weight" in own for own in queues.values()) else "fair",
    }
