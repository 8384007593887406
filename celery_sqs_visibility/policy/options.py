"""The transport options: each declared once, with bounds, default and documentation.

docs/options.md is generated from here: `python -m celery_sqs_visibility.policy.options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.exclusive import (
    LONGEST_TTL_SECONDS,
    TTL_SECONDS,
    StoreAddress,
    store_address,
)
from celery_sqs_visibility.policy.kombu_options import KombuOptions
from celery_sqs_visibility.policy.option_fields import option, option_name
from celery_sqs_visibility.policy.option_parsers import (
    Seconds,
    delay,
    dotted_path,
    on_exhausted,
    on_lost,
    queue_name,
)
from celery_sqs_visibility.policy.other_options import OTHER_PEOPLES_OPTIONS, REMEDIES
from celery_sqs_visibility.policy.payload_options import PayloadOptions
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retry_delays import DelayRule

__all__ = ["OptionError", "Options", "option_name", "reference_table"]

_HORIZON = " (SQS's 12 hours)"

#: A request to extend needs time to arrive.
SHORTEST_HEARTBEAT_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Options(PayloadOptions, KombuOptions):
    """`broker_transport_options`, checked. Durations are seconds.

    A name with a dash in kombu (`client-config`) has an underscore here.
    """

    visibility_timeout: int = option(
        120,
        Seconds(1, VISIBILITY_HORIZON_SECONDS, whole=True, why=_HORIZON),
        "How long a received message stays hidden. Sent on every receive and renewed by the heartbeat, so it "
        "is also how long the message of a killed worker takes to come back.",
    )
    heartbeat_interval: float = option(
        None,
        Seconds(SHORTEST_HEARTBEAT_SECONDS, VISIBILITY_HORIZON_SECONDS, zero=True),
        "How long before its deadline a held message is extended; 0 switches the heartbeat off.",
        "visibility_timeout / 3",
    )
    error_visibility_timeout: DelayRule | None = option(
        None,
        delay,
        "How long a failed message stays hidden: seconds, a list by attempt (the last repeats), or the "
        "dotted path of a callable(retries, exc). None: until its visibility timeout runs out.",
    )
    wait_time_seconds: int = option(
        20,
        Seconds(0, WAIT_TIME_SECONDS, whole=True, why=" (SQS's longest poll)"),
        "How long a poll waits for a message.",
    )
    polling_interval: float = option(
        0.0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "How long to sleep after an empty poll. At 0, empty polls that end at once are a second apart.",
    )
    polling_interval_max: float = option(
        None,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "What that sleep grows to while the queue stays empty. It ends early for a message that is known to "
        "reappear.",
        "polling_interval",
    )
    shutdown_timeout: float = option(
        25.0,
        Seconds(0, VISIBILITY_HORIZON_SECONDS),
        "After SIGTERM, how long running tasks may go on before their messages are released.",
    )
    on_lost: str = option(
        "continue",
        on_lost,
        "What becomes of a running task whose message's visibility has lapsed, so that another worker may "
        "run it too: it goes on, told by `self.visibility.lost`, or is ended (not in threads and solo).",
    )
    settle_window: float = option(
        0.02,
        Seconds(0, 5),
        "How long a delete or a visibility change waits for others to fill a batch; 0 sends at once. Several "
        "deletes wait five times as long, but not those of a FIFO queue.",
    )
    prefetch_seconds: float = option(
        1.0,
        Seconds(0, 60),
        "How many seconds of work, at the measured pace, a worker holds beyond the tasks that run; 0: none. "
        "Of tasks that take a second or more it holds none in any case.",
    )
    dead_letter_queue: str | None = option(
        None,
        queue_name,
        "Celery's name of a queue for messages that are given up in queues whose redrive policy names none; "
        "looked up, or created, when a consumer starts. A redrive policy's own queue goes first.",
    )
    on_exhausted: str = option(
        "delete",
        on_exhausted,
        "What becomes of a message after its last attempt where there is no dead-letter queue. A kept one "
        "comes back every hour, not to be run, until its retention ends; in a FIFO queue its group waits "
        "behind it. A task's `on_exhausted` goes first.",
    )
    exclusive_store: StoreAddress | None = option(
        None,
        store_address,
        "Where the keys of exclusive tasks are kept: `dynamodb://TABLE`, with `?region=` where it is another "
        "than that of SQS, `redis://HOST` or `rediss://HOST`.",
    )
    exclusive_ttl: float = option(
        TTL_SECONDS,
        Seconds(1, LONGEST_TTL_SECONDS),
        "How long the key of an exclusive task counts as processed after a run has succeeded. A task's "
        "`exclusive_ttl` goes first.",
    )

    message_adapter: str | None = option(
        None,
        dotted_path,
        "The dotted path of a callable(body, attributes) that makes tasks of messages that are not Celery's, "
        "and that no task's `sqs_event` takes: it returns (task, args, kwargs), or None. Workers import it.",
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
            is_set = value is not None and value != ""  # to kombu, both mean "not set"
            if name in declared and is_set:
                values[declared[name].name] = declared[name].metadata["parse"](name, value)
            elif not (name in declared or name in OTHER_PEOPLES_OPTIONS or (name in REMEDIES and not value)):
                raise OptionError(_unknown(name, declared))
        return cls(**_derived_defaults(values) | values)

    def __post_init__(self) -> None:
        super().__post_init__()
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
    payloads, kombus = ({f.name for f in fields(kind)} for kind in (PayloadOptions, KombuOptions))
    for f in sorted(fields(Options), key=lambda f: (f.name in kombus, f.name in payloads)):
        row = f.metadata
        rows.append(f"| `{option_name(f.name)}` | `{row['default']}` | {row['bounds']} | {row['doc']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(REFERENCE.format(table=reference_table()), end="")  # noqa: T201 - a command's output
