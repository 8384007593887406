"""A status as tables and sentences, for any output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import Table, counted
from celery_sqs_visibility.operate.status.report import QueueStatus, Status

Column = tuple[str, Callable[[QueueStatus], Any]]

_QUEUE: Final[Column] = ("queue", lambda each: each.depth.queue)

_MESSAGES: Final[tuple[Column, ...]] = (
    ("visible", lambda each: each.depth.visible),
    ("in flight", lambda each: each.depth.in_flight),
    ("running", lambda each: each.work and each.work.running),
    ("held", lambda each: each.work and each.work.held),
    ("hidden", lambda each: each.hidden),
    ("delayed", lambda each: each.depth.delayed),
    ("oldest", lambda each: _duration(each.depth.oldest_age_seconds)),
    ("dead", lambda each: each.depth.dead_letters),
)

_PACE: Final[tuple[Column, ...]] = (
    ("workers", lambda each: each.work and each.work.workers),
    ("free slots", lambda each: each.work and f"{each.work.free}/{each.work.slots}"),
    ("waited", lambda each: _duration(each.work.waited if each.work else None)),
    ("in/s", lambda each: _rate(each.sent)),
    ("out/s", lambda each: _rate(each.deleted)),
    ("empty in", lambda each: _emptying(each)),  # noqa: PLW0108 - defined below
    ("req/day", lambda each: each.requests_a_day),
    ("USD/day", lambda each: each.usd_a_day),
)

#: Columns that only workers can fill.
_OF_WORKERS: Final = {"running", "held", "hidden", "workers", "free slots", "waited"}


def queue_tables(taken: Status, room: float) -> list[Table]:
    """The queues in one table, or in two if one is wider than `room`."""
    whole = _table(taken, _QUEUE, *_MESSAGES, *_PACE)
    if whole.width <= room:
        return [whole]
    return [_table(taken, _QUEUE, *_MESSAGES), _table(taken, _QUEUE, *_PACE)]


def _table(taken: Status, *columns: Column) -> Table:
    asked = any(each.work for each in taken.queues)
    shown = [column for column in columns if asked or column[0] not in _OF_WORKERS]
    return Table([name for name, _ in shown], [[cell(each) for _, cell in shown] for each in taken.queues])


def worker_table(taken: Status) -> Table:
    """The workers; those that have stopped answering are last."""
    rows = [_worker_row(node, answer) for node, answer in taken.workers.items()]
    rows += [
        [node, *[None] * 4, f"silent for {duration_text(round(age))}"] for node, age in taken.silent.items()
    ]
    return Table(["worker", "pool", "slots busy", "held", "hidden", "paused"], rows)


def sentences(taken: Status) -> Iterator[str]:
    """Sentences about why messages wait, which figures are old, and what is missing."""
    for each in taken.queues:
        if why := each.why:
            yield f"queue {each.depth.queue!r}: {each.depth.visible:,} wait: {why}."
    yield from brake_sentences(taken.workers)
    old = {each.depth.queue: each.age_seconds for each in taken.queues if each.age_seconds}
    if taken.workers_age_seconds:
        old["the workers"] = taken.workers_age_seconds
    if old:
        yield "old figures: " + ", ".join(
            f"{name} {duration_text(round(age))} ago" for name, age in old.items()
        )
    yield from taken.notes


def brake_sentences(workers: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each brake that is not off in some worker."""
    brakes: dict[str, list[Mapping[str, Any]]] = {}
    for answer in workers.values():
        for each in answer.get("brakes", ()):
            brakes.setdefault(each["brake"], []).append(each)
    for name, each in sorted(brakes.items()):
        first = max(each, key=lambda one: (one["stage"] == "on", one["seconds"]))
        held, tries = (sum(one[figure] for one in each) for figure in ("waiting", "tries"))
        error = next((one["error"] for one in each if one["error"]), "unknown")
        yield (
            f"brake {name!r} of {', '.join(first['tasks'])} is {first['stage']} in {len(each)} of "
            f"{counted(len(workers), 'worker')}, for {duration_text(round(first['seconds']))}: "
            f"{counted(held, 'message')} held, {counted(tries, 'run')} tried; the latest error is {error}."
        )


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration_text(seconds)


def _rate(a_second: float | None) -> float | None:
    return None if a_second is None else float(f"{a_second:.3g}")


def _emptying(queue: QueueStatus) -> str | None:
    if (seconds := queue.seconds_to_empty) is not None:
        return duration_text(round(seconds)) if seconds else "empty"
    return None if queue.change is None else "grows" if queue.change > 0 else "stands"


def _worker_row(node: str, answer: Mapping[str, Any]) -> list[Any]:
    if "queues" not in answer:  # another transport's, or an older version
        return [node, None, None, None, None, answer.get("error")]
    queues: Mapping[str, Mapping[str, Any]] = answer["queues"]
    held, hidden = (sum(queue.get(each, 0) for queue in queues.values()) for each in ("held", "hidden"))
    paused = [_paused(name, queue) for name, queue in queues.items() if queue["paused"]]
    tasks: Mapping[str, float | None] = answer.get("paused_tasks", {})
    paused += [_paused(f"task {name}", {"seconds_left": left}) for name, left in tasks.items()]
    return [
        node,
        answer["pool"],
        f"{answer['busy']}/{answer['slots']}",
        held,
        hidden,
        ", ".join(paused) or None,
    ]


def _paused(name: str, queue: Mapping[str, Any]) -> str:
    left = queue["seconds_left"]
    said = [f"{duration_text(left)} left"] if left is not None else []
    said += ["kept"] if queue.get("kept") else []
    return f"{name} ({', '.join(said)})" if said else name
