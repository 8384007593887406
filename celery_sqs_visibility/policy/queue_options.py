"""The options that one queue may have for itself, within the option `queues`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_keys import check_keys, set_keys
from celery_sqs_visibility.policy.option_parsers import (
    Seconds,
    Whole,
    delay,
    instance_of,
    on_exhausted,
    queue_name,
)
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retry_delays import DelayRule

_HORIZON = " (SQS's 12 hours)"

#: A request to extend needs time to arrive.
SHORTEST_HEARTBEAT_SECONDS: Final = 0.1

#: The largest weight: more would be "strict" by another name.
MOST_WEIGHT: Final = 1000

#: More runs at once than any worker has.
MOST_RUNNING: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options that `Options` has for all queues, and `QueueOptions` for one."""

    visibility_timeout: int = option(
        120,
        Seconds(1, VISIBILITY_HORIZON_SECONDS, whole=True, why=_HORIZON, clamp=True),
        "How long a received message stays hidden. Sent on every receive and renewed by the heartbeat, so it "
        "is also how long the message of a killed worker takes to come back. More than SQS's 12 hours count "
        "as 12 hours, and a worker warns of it.",
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


@dataclass(frozen=True, kw_only=True)
class QueueOptions(SharedOptions):
    """The options of one queue, checked.

    Attributes:
        place: the queue's entry in the option `queues`, counted from 0; queues without one come after all.
    """

    weight: int = option(1, Whole(1, MOST_WEIGHT), "Its share of the turns under queue_order 'weighted'.")
    max_running: int | None = option(
        None, Whole(1, MOST_RUNNING), "The most tasks of the queue that one worker runs at once."
    )
    place: int = 0


#: The options of a queue, by Celery's name of it.
OptionsOfQueue = Callable[[str], QueueOptions]

#: What the user wrote for queues, checked one by one: options by field, by the name or glob of the queues.
Entries = Mapping[str, Mapping[str, Any]]


def beyond_horizon(given: Mapping[str, Any]) -> dict[str, Any]:
    """The visibility timeouts beyond SQS's 12 hours, by option, of transport options that were checked."""
    name = "visibility_timeout"
    of_queues = {f"queues[{glob!r}]": own for glob, own in (given.get("queues") or {}).items()}
    named = {name: given, **{f"{entry}[{name!r}]": own for entry, own in of_queues.items()}}
    timeouts = {option: own.get(name) or 0 for option, own in named.items()}
    return {
        option: seconds for option, seconds in timeouts.items() if float(seconds) > VISIBILITY_HORIZON_SECONDS
    }


def queue_entries(name: str, value: Any) -> Entries:
    """The option `queues`: a mapping of names or globs to mappings of options."""
    given = instance_of(Mapping, "a mapping of queues to their options")(name, value)
    return {_glob(name, glob): _entry(f"{name}[{glob!r}]", options) for glob, options in given.items()}


def _glob(name: str, glob: Any) -> str:
    return str(instance_of(str, "a mapping whose keys are names of queues, or globs")(name, glob))


def _entry(name: str, options: Any) -> dict[str, Any]:
    declared = {f.name: f.metadata["parse"] for f in fields(QueueOptions) if f.metadata}
    given = instance_of(Mapping, "a mapping of options")(name, options)
    check_keys(name, given, sorted(declared), "option")
    return {key: declared[key](f"{name}[{key!r}]", value) for key, value in set_keys(given).items()}


def entry_for(entries: Entries, queue: str) -> str | None:
    """The key of the queue's entry: its own name, or else the first glob that matches."""
    if queue in entries:
        return queue
    return next((glob for glob in entries if fnmatchcase(queue, glob)), None)


def options_of_entry(entries: Entries, glob: str | None, shared: SharedOptions) -> QueueOptions:
    """The entry's own options, and the `shared` ones; with `None`, of a queue that has no entry.

    Raises:
        OptionError: they contradict each other.
    """
    own = {} if glob is None else dict(entries[glob])
    # Derived from the queue's own. A heartbeat that is off for all stays off.
    if "visibility_timeout" in own and shared.heartbeat_interval:
        own.setdefault("heartbeat_interval", own["visibility_timeout"] / 3)
    if "polling_interval" in own:
        own.setdefault("polling_interval_max", max(own["polling_interval"], shared.polling_interval_max))
    inherited = {f.name: getattr(shared, f.name) for f in fields(SharedOptions)}
    place = len(entries) if glob is None else list(entries).index(glob)
    try:
        return QueueOptions(**{**inherited, **own, "place": place})
    except OptionError as error:
        raise OptionError(f"in queues[{glob!r}]: {error}") from None
