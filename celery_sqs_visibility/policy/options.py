"""The transport options: each declared once, with bounds, default and documentation.

docs/options.md is generated from here: `python -m celery_sqs_visibility.policy.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.content_options import ContentOptions
from celery_sqs_visibility.policy.control_options import ControlOptions
from celery_sqs_visibility.policy.exclusive import (
    LONGEST_TTL_SECONDS,
    TTL_SECONDS,
    StoreAddress,
    store_address,
)
from celery_sqs_visibility.policy.kombu_options import KombuOptions
from celery_sqs_visibility.policy.metrics_options import MetricsOptions
from celery_sqs_visibility.policy.operate_options import OperateOptions
from celery_sqs_visibility.policy.option_fields import option, option_name
from celery_sqs_visibility.policy.option_keys import unknown
from celery_sqs_visibility.policy.option_parsers import OneOf, Seconds, dotted_path, flag, on_lost
from celery_sqs_visibility.policy.other_options import OTHER_PEOPLES_OPTIONS, REMEDIES
from celery_sqs_visibility.policy.payload_options import PayloadOptions
from celery_sqs_visibility.policy.queue_options import (
    Entries,
    OptionsOfQueue,
    QueueOptions,
    SharedOptions,
    entry_for,
    options_of_entry,
    queue_entries,
)
from celery_sqs_visibility.policy.queue_order import ORDERS, Order
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

#: Queues whose options are kept at hand: there are no bounds to the names of replies' queues.
KEPT_QUEUES: Final = 1000

__all__ = ["OptionError", "Options", "option_name", "reference_table"]


@dataclass(frozen=True, kw_only=True)
class Options(
    MetricsOptions,
    OperateOptions,
    ControlOptions,
    ContentOptions,
    PayloadOptions,
    SharedOptions,
    KombuOptions,
):
    """`broker_transport_options`, checked. Durations are seconds.

    A name with a dash in kombu (`client-config`) has an underscore here.
    """

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
    share_requests: bool = option(
        True,
        flag,
        "Whether publications that are under way to a queue at the same time, in threads or greenlets of a "
        "process, share requests: see [publishing many](publishing-many.md#from-several-threads).",
    )
    queues: Entries = option(
        {},
        queue_entries,
        "Options of some queues, by Celery's name or a glob: see [several queues](several-queues.md). A "
        "queue's own name goes before globs; of globs the first that matches counts.",
    )

    queue_order: Order = option(
        None,
        OneOf(ORDERS),
        "Which queue's message is run next: of all in turn as they come, of the queue that `queues` lists "
        "first, or by `weight`: see [several queues](several-queues.md).",
        "'fair', or 'weighted' if a queue has a weight",
    )
    exclusive_store: StoreAddress | None = option(
        None,
        store_address,
        "Where the keys of exclusive tasks are kept, and several beats agree on who sends: "
        "`dynamodb://TABLE`, with `?region=` where it is another than that of SQS, `redis://HOST` or "
        "`rediss://HOST`.",
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
                raise _unknown(name, declared)
        return cls(**_derived_defaults(values) | values)

    def __post_init__(self) -> None:
        KombuOptions.__post_init__(self)
        super().__post_init__()
        _ = self._of_entries  # raises where they contradict each other
        if self.queue_order == "strict" and not self.queues:
            raise OptionError(
                "expected queues to list the queues, the most urgent first, since queue_order is 'strict', "
                "got none"
            )

    @cached_property
    def for_queue(self) -> OptionsOfQueue:
        """Gives the options of a queue, by Celery's name of it. Each message asks: so answers are kept."""
        return lru_cache(KEPT_QUEUES)(lambda name: self._of_entries[entry_for(self.queues, name)])

    @cached_property
    def _of_entries(self) -> dict[str | None, QueueOptions]:
        return {glob: options_of_entry(self.queues, glob, self) for glob in (*self.queues, None)}

    @property
    def has_turns(self) -> bool:
        """Whether a worker's queues have an order, or some of them a limit of their own."""
        return self.queue_order != "fair" or any(each.max_running for each in self._of_entries.values())

    @property
    def longest_visibility_timeout(self) -> int:
        """Of all queues, in seconds."""
        return max(each.visibility_timeout for each in self._of_entries.values())

    @property
    def longest_poll(self) -> int:
        """The `wait_time_seconds` of all queues."""
        return max(each.wait_time_seconds for each in self._of_entries.values())


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    queues: Entries = values.get("queues", {})
    return {
        "heartbeat_interval": values.get("visibility_timeout", 120) / 3,
        "polling_interval_max": values.get("polling_interval", 0.0),
        "is_secure": False,
        "queue_order": "weighted" if any("weight" in own for own in queues.values()) else "fair",
    }


def _unknown(name: str, declared: Mapping[str, Any]) -> OptionError:
    if name in REMEDIES:
        return OptionError(f"there is no transport option {name!r}: {REMEDIES[name]}")
    return unknown(f"transport option {name!r}", name, sorted(declared))


REFERENCE = """\
# Transport options

`broker_transport_options` of Celery, `transport_options` of kombu. Durations are seconds. A misspelt option
(or key of one that is a mapping), a value out of bounds or a contradiction is refused when the first
connection is made, with a sentence that names the option, the value, the bound and the nearest valid name.
`celery worker` and `celery beat` end with that sentence and exit status 1. `None` and empty text mean the
default.

{table}"""


def reference_table() -> str:
    """The options as a Markdown table."""
    rows = ["| option | default | bounds | meaning |", "|---|---|---|---|"]
    last = [{f.name for f in fields(kind)} for kind in (KombuOptions, OperateOptions, PayloadOptions)]
    for f in sorted(fields(Options), key=lambda f: [f.name in kind for kind in last]):
        row = f.metadata
        rows.append(f"| `{option_name(f.name)}` | `{row['default']}` | {row['bounds']} | {row['doc']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(REFERENCE.format(table=reference_table()), end="")  # noqa: T201 - a command's output
