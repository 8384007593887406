"""The transport options: each declared once, with bounds, default and documentation.

docs/options.md is generated from here: `python -m celery_sqs_visibility.policy.options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import (
    Parser,
    Seconds,
    delay,
    flag,
    instance_of,
    mapping,
    on_exhausted,
    on_lost,
    queue_name,
    queues,
    text,
)
from celery_sqs_visibility.policy.other_options import OTHER_PEOPLES_OPTIONS, REMEDIES
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retry_delays import DelayRule

__all__ = ["OptionError", "Options", "option_name", "reference_table"]

_HORIZON = " (SQS's 12 hours)"

#: A request to extend needs time to arrive.
SHORTEST_HEARTBEAT_SECONDS = 0.1


def _option(default: Any, parse: Parser, doc: str, shown_default: str | None = None) -> Any:
    shown = repr(default) if shown_default is None else shown_default
    metadata = {"parse": parse, "doc": doc, "default": shown, "bounds": getattr(parse, "bounds", "")}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """`broker_transport_options`, checked. Durations are seconds.

    A name with a dash in kombu (`client-config`) has an underscore here.
    """

    visibility_timeout: int = _option(
        120,
        Seconds(1, VISIBILITY_HORIZON_SECONDS, whole=True, why=_HORIZON),
        "How long a received message stays hidden. Sent on every receive and renewed by the heartbeat, so it "
        "is also how long the message of a killed worker takes to come back.",
    )
    heartbeat_interval: float = _option(
        None,
        Seconds(SHORTEST_HEARTBEAT_SECONDS, VISIBILITY_HORIZON_SECONDS, zero=True),
        "How long before its deadline a held message is extended; 0 switches the heartbeat off.",
        "visibility_timeout / 3",
    )
    error_visibility_timeout: DelayRule | None = _option(
        None,
        delay,
        "How long a failed message stays hidden: seconds, a list by attempt (the last repeats), or the "
        "dotted path of a callable(retries, exc). None: until its visibility timeout runs out.",
    )
    wait_time_seconds: int = _option(
        20,
        Seconds(0, WAIT_TIME_SECONDS, whole=True, why=" (SQS's longest poll)"),
        "How long a poll waits for a message.",
    )
    polling_interval: float = _option(
        0.0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "How long to sleep after an empty poll. At 0, empty polls that end at once are a second apart.",
    )
    polling_interval_max: float = _option(
        None,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "What that sleep grows to while the queue stays empty. It ends early for a message that is known to "
        "reappear.",
        "polling_interval",
    )
    shutdown_timeout: float = _option(
        25.0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "After SIGTERM, how long running tasks may go on before their messages are released.",
    )
    on_lost: str = _option(
        "continue",
        on_lost,
        "What becomes of a running task whose message's visibility has lapsed, so that another worker may "
        "run it too: it goes on, told by `self.visibility.lost`, or is ended (not in threads and solo).",
    )
    settle_window: float = _option(
        0.02,
        Seconds(0, 5),
        "How long a delete or a visibility change waits for others to fill a batch; 0 sends at once. Several "
        "deletes wait five times as long, but not those of a FIFO queue.",
    )
    prefetch_seconds: float = _option(
        1.0,
        Seconds(0, 60),
        "How many seconds of work, at the measured pace, a worker holds beyond the tasks that run; 0: none. "
        "Of tasks that take a second or more it holds none in any case.",
    )
    dead_letter_queue: str | None = _option(
        None,
        queue_name,
        "Celery's name of a queue for messages that are given up in queues whose redrive policy names none; "
        "looked up, or created, when a consumer starts. A redrive policy's own queue goes first.",
    )
    on_exhausted: str = _option(
        "delete",
        on_exhausted,
        "What becomes of a message after its last attempt where there is no dead-letter queue. A kept one "
        "comes back every hour, not to be run, until its retention ends; in a FIFO queue its group waits "
        "behind it. A task's `on_exhausted` goes first.",
    )
    region: str | None = _option(
        None,
        text,
        "The AWS region; otherwise the profile's or the environment's; else us-east-1, with a warning.",
    )
    is_secure: bool = _option(
        None,
        flag,
        "Whether to speak TLS to an endpoint that the URL gives as host and port.",
        "False",
    )
    queue_name_prefix: str = _option("", text, "Put before the name of every queue that is not predefined.")
    predefined_queues: Mapping[str, Mapping[str, Any]] = _option(
        {},
        queues,
        "Queues by name, each with 'url' and, if wanted, 'region', 'access_key_id', 'secret_access_key', "
        "'session_token'. With it no queue is looked up or created.",
    )
    sqs_creation_attributes: Mapping[str, Any] = _option(
        {}, mapping, "Attributes for queues that are created, as for the API action CreateQueue."
    )
    queue_tags: Mapping[str, str] = _option({}, mapping, "Tags for queues that are created.")
    client_config: Mapping[str, Any] = _option(
        {}, mapping, "Options of botocore.config.Config for every client."
    )
    fetch_message_attributes: Any = _option(
        None,
        instance_of((str, list, tuple, Mapping), "a list of names or a mapping of lists"),
        "Attributes to receive with each message: a list of system attributes, or a mapping with "
        "'MessageSystemAttributeNames' and 'MessageAttributeNames'.",
    )
    sqs_base64_encoding: bool = _option(
        True, flag, "Whether sent messages are base64-encoded, as kombu does; both kinds are understood."
    )
    sts_role_arn: str | None = _option(None, text, "A role to assume.")
    sts_token_timeout: int = _option(
        900,
        Seconds(900, VISIBILITY_HORIZON_SECONDS, whole=True),
        "How long the role's credentials are good for.",
    )
    sts_token_buffer_time: int = _option(
        0, Seconds(0, VISIBILITY_HORIZON_SECONDS, whole=True), "How much earlier than that they are renewed."
    )

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check `broker_transport_options`.

        Raises:
            OptionError: naming the option, the value, the bound and, for a misspelt one, the nearest name.
        """
        declared = {option_name(f.name): f for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name in declared:
                # To kombu, None and "" mean "not set".
                if value is not None and value != "":
                    values[declared[name].name] = declared[name].metadata["parse"](name, value)
            elif name not in OTHER_PEOPLES_OPTIONS and not (name in REMEDIES and not value):
                raise OptionError(_unknown(name, declared))
        return cls(**_derived_defaults(values) | values)

    def __post_init__(self) -> None:
        if self.heartbeat_interval >= self.visibility_timeout:
            raise OptionError(
                "expected heartbeat_interval to be less than visibility_timeout "
                f"({self.visibility_timeout}), got {self.heartbeat_interval:g}: a message has to be extended "
                "before it comes back"
            )
        if self.polling_interval_max < self.polling_interval:
            raise OptionError(
                f"expected polling_interval_max to be at least polling_interval ({self.polling_interval:g}), "
                f"got {self.polling_interval_max:g}"
            )
        if self.sts_token_buffer_time >= self.sts_token_timeout:
            raise OptionError(
                "expected sts_token_buffer_time to be less than sts_token_timeout "
                f"({self.sts_token_timeout}), got {self.sts_token_buffer_time}: the credentials would be "
                "renewed without end"
            )


_DASHED = {"client_config": "client-config", "sqs_creation_attributes": "sqs-creation-attributes"}


def option_name(field_name: str) -> str:
    """The name a user writes for a field of `Options`."""
    return _DASHED.get(field_name, field_name)


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "heartbeat_interval": values.get("visibility_timeout", 120) / 3,
        "polling_interval_max": values.get("polling_interval", 0.0),
        "is_secure": False,
    }


def _unknown(name: str, declared: Mapping[str, Any]) -> str:
    if name in REMEDIES:
        return f"there is no transport option {name!r}: {REMEDIES[name]}"
    near = difflib.get_close_matches(str(name), declared, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid ones are: {', '.join(sorted(declared))}"
    return f"unknown transport option {name!r}: {hint}"


REFERENCE = """\
# Transport options

`broker_transport_options` of Celery, `transport_options` of kombu. Durations are seconds. A misspelt option,
a value out of bounds or a contradiction is refused when the first connection is made, with a sentence that
names the option, the value, the bound and the nearest valid name. `celery worker` and `celery beat` end with
that sentence and exit status 1. `None` and empty text mean the default.

{table}"""


def reference_table() -> str:
    """The options as a Markdown table."""
    rows = ["| option | default | bounds | meaning |", "|---|---|---|---|"]
    for f in fields(Options):
        row = f.metadata
        rows.append(f"| `{option_name(f.name)}` | `{row['default']}` | {row['bounds']} | {row['doc']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(REFERENCE.format(table=reference_table()), end="")  # noqa: T201 - a command's output
