"""The status of an app's queues and workers, as values, and those who ask SQS and the workers about it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from celery import Celery

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.operate.app_queues import QueueDepth, counted_queues, queue_depths
from celery_sqs_visibility.operate.figures import usd_of
from celery_sqs_visibility.operate.invocation import ask_or_say
from celery_sqs_visibility.operate.queue_metrics import (
    AGE,
    DELETED,
    REQUESTS_OF_A_DAY,
    SENT,
    Measured,
    QueueMetrics,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES, MANY_IN_FLIGHT_MESSAGES
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.control_exchanges import EX_NOPERM, EX_UNAVAILABLE

#: CloudWatch has one value a minute, and asking costs money.
METRICS_SECONDS: Final = 60

#: The rate at which a queue drains is computed from counts at least this far apart, because they are
#: approximate.
MIN_LOOKS_SECONDS: Final = 10
MAX_LOOKS_SECONDS: Final = 60

ESTIMATE: Final = (
    "requests and USD a day are an estimate, of CloudWatch's last 24 hours: a request for each empty "
    "receive, and for each message sent, received and deleted. Batches make it less, extensions more; prices "
    "of us-east-1."
)


@dataclass(frozen=True, slots=True)
class QueueWork:
    """A queue from the point of view of the workers that consume it.

    Attributes:
        workers: number of workers that consume it.
        paused: number of these that do not poll it.
        slots: total slots of these workers, shared with their other queues.
        free: number of these slots without a run.
        running: messages of the queue that are running.
        held: messages of the queue that workers hold, including running ones.
        waited: the longest time in seconds that a running first attempt waited, after it was sent or after
            its ETA; `None` if none runs.
        others: the numbers of these workers' runs, by their other queues.
        brakes: the brakes for which the queue rests, if no worker polls it as usual.
    """

    workers: int = 0
    paused: int = 0
    slots: int = 0
    free: int = 0
    running: int = 0
    held: int = 0
    waited: float | None = None
    others: Counter[str] | None = None
    brakes: tuple[str, ...] = ()

    def why_waiting(self) -> str | None:
        """Why messages of the queue wait; `None` if workers can receive them."""
        if not self.workers:
            return "NO WORKER that answered consumes it"
        if self.paused == self.workers:
            return "it is paused"
        if self.brakes:
            return f"for brake {', '.join(map(repr, self.brakes))}, and the queue is polled seldom meanwhile"
        if self.free:
            return None
        if self.others and (most := self.others.most_common(1)[0])[1] > self.running:
            return f"slots are taken by {most[0]} ({most[1]} of {self.slots})"
        return f"all slots are taken ({self.running} of {self.slots} by its own tasks)"


def work_of(queue: str, answers: Mapping[str, Any]) -> QueueWork:
    """Combine the answers to `sqs_queues`, by node, of the workers that consume the queue."""
    answered = [each for each in answers.values() if queue in each.get("queues", ())]
    own = [each["queues"][queue] for each in answered]
    others = Counter[str]()
    for each in answered:
        others.update({name: facts.get("running", 0) for name, facts in each["queues"].items()})
    del others[queue]
    return QueueWork(
        workers=len(own),
        paused=sum(each["paused"] for each in own),
        slots=sum(each["slots"] for each in answered),
        free=sum(max(0, each["slots"] - each["busy"]) for each in answered),
        running=sum(each.get("running", 0) for each in own),
        held=sum(each["held"] for each in own),
        waited=max((each["waited"] for each in own if each.get("waited") is not None), default=None),
        others=others,
        brakes=_rests_for(queue, answered),
    )


def _rests_for(queue: str, answered: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The brakes for which the queue rests in all workers that have not paused it."""
    polling = [each for each in answered if not each["queues"][queue]["paused"]]
    if not all(each["queues"][queue].get("rests") for each in polling):
        return ()
    brakes = (brake for each in polling for brake in each.get("brakes", ()))
    return tuple(sorted({brake["brake"] for brake in brakes if brake["stage"] == "on"}))


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A row: the depth of a queue, the workers' view of it, its rates and its cost; `None` if unknown.

    If SQS does not answer, the depth may be the last known one, `age_seconds` old.

    Attributes:
        sent: messages sent to it per second.
        deleted: messages deleted per second.
        change: messages by which it grows per second; negative while it drains.
    """

    depth: QueueDepth
    requests_a_day: int | None = None
    usd_a_day: float | None = None
    age_seconds: float = 0.0
    work: QueueWork | None = None
    sent: float | None = None
    deleted: float | None = None
    change: float | None = None

    @property
    def messages(self) -> int | None:
        """The total of visible, in-flight and delayed messages."""
        depth = self.depth
        if depth.visible is None or depth.in_flight is None or depth.delayed is None:
            return None
        return depth.visible + depth.in_flight + depth.delayed

    @property
    def seconds_to_empty(self) -> float | None:
        """Seconds until it is empty at the current rate; `None` if unknown, or if it does not drain."""
        messages = self.messages
        if messages and self.change is not None and self.change < 0:
            return messages / -self.change
        return 0.0 if messages == 0 else None

    @property
    def hidden(self) -> int | None:
        """Messages in flight that no worker that answered holds: retries, ETAs, a killed worker's."""
        if self.work is None or self.depth.in_flight is None:
            return None
        return max(0, self.depth.in_flight - self.work.held)

    @property
    def why(self) -> str | None:
        """Why its visible messages wait; `None` if there are none, or workers can receive them."""
        return self.work.why_waiting() if self.work is not None and self.depth.visible else None

    def as_json(self) -> dict[str, Any]:
        """Its figures, by name."""
        depth, work = self.depth, self.work
        return {
            "queue": depth.queue,
            "visible": depth.visible,
            "in_flight": depth.in_flight,
            "delayed": depth.delayed,
            "running": work and work.running,
            "held": work and work.held,
            "hidden": self.hidden,
            "oldest_age_seconds": depth.oldest_age_seconds,
            "dead_letters": depth.dead_letters,
            "workers": work and work.workers,
            "slots": work and work.slots,
            "free_slots": work and work.free,
            "waited_seconds": work and work.waited,
            "sent_a_second": self.sent,
            "deleted_a_second": self.deleted,
            "seconds_to_empty": self.seconds_to_empty,
            "requests_a_day": self.requests_a_day,
            "usd_a_day": self.usd_a_day,
            "why": self.why,
            "age_seconds": round(self.age_seconds, 1),
            "error": str(depth.error) if depth.error else None,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The queues, the workers' answers by node and their ages, and sentences about what is missing.

    Attributes:
        silent: for how many seconds workers that have stopped answering have been silent.
        runs: the longest runs by node, including those of silent workers.
    """

    queues: list[QueueStatus]
    workers: Mapping[str, Any] = field(default_factory=dict)
    workers_age_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All figures and notes, by name."""
        queues = [each.as_json() for each in self.queues]
        return {
            "queues": queues,
            "workers": dict(self.workers),
            "workers_age_seconds": round(self.workers_age_seconds, 1),
            "silent_seconds": {node: round(age, 1) for node, age in self.silent.items()},
            "notes": list(self.notes),
        }

    @property
    def exit_status(self) -> int:
        """77 if a permission is missing, 69 if SQS does not answer, 1 for any other uncounted queue."""
        errors = [each.depth.error for each in self.queues if each.depth.visible is None]
        for kind, status in ((AccessDeniedError, EX_NOPERM), (UnavailableError, EX_UNAVAILABLE)):
            if any(isinstance(error, kind) for error in errors):
                return status
        return 1 if errors else 0


#: The figures that CloudWatch is asked for.
ASKED: Final = (AGE, REQUESTS_OF_A_DAY, SENT, DELETED)


class QueueReport:
    """Asks for the status of a broker's queues. Any thread, one at a time."""

    def __init__(
        self, context: BrokerContext, names: Sequence[str], metrics: QueueMetrics, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._context = context
        self._names = names
        self._metrics = metrics
        self._clock = clock
        self._measured = dict.fromkeys(ASKED, Measured({}))
        self._measured_at: float | None = None
        self._counted: dict[str, tuple[float, QueueStatus]] = {}  # by Celery's name: (since when, status)
        self._samples: dict[str, deque[tuple[float, int]]] = {}  # by Celery's name: (when, messages)

    def take(self) -> Status:
        """Ask SQS, and also CloudWatch if its last answer is a minute old.

        A queue that SQS can't count now keeps its last status.
        """
        depths = queue_depths(self._context, self._names)
        self._measure(counted_queues(self._context, depths))
        rows = [self._or_as_before(self._changing(self._row(depth))) for depth in depths]
        errors = [each.error for each in depths] + [each.error for each in self._measured.values()]
        notes = [
            *filter(None, map(_near_quota, depths)),
            *([ESTIMATE] if self._measured[REQUESTS_OF_A_DAY].figures else []),
            *dict.fromkeys(str(error) for error in errors if error is not None),
        ]
        return Status(rows, notes=tuple(notes))

    def cost(self, seconds: float, requests_of_workers: int) -> str:
        """A sentence about the cost of one update at that interval."""
        requests = 2 * len(self._names) + requests_of_workers
        looks = 86_400 / seconds
        usd = usd_of(requests * looks, "")
        sentence = f"about {requests} requests a refresh, up to {requests * looks:,.0f} a day: USD {usd:.2f}"
        if queues := len(self._measured[REQUESTS_OF_A_DAY].figures):
            per_minute = sum(len(each.names) for each in ASKED) * queues
            sentence += f", and USD {per_minute * 1440 / 100_000:.2f} for CloudWatch"
        return f"every {seconds:g} s {sentence}."

    def _changing(self, row: QueueStatus) -> QueueStatus:
        """Add the queue's rate of change, computed from two counts, or else from CloudWatch."""
        messages, now = row.messages, self._clock.monotonic()
        if messages is None:
            return row
        samples = self._samples.setdefault(row.depth.queue, deque())
        samples.append((now, messages))
        while now - samples[0][0] > MAX_LOOKS_SECONDS:
            samples.popleft()
        since, before = samples[0]
        if now - since >= MIN_LOOKS_SECONDS:
            return replace(row, change=(messages - before) / (now - since))
        if row.sent is None or row.deleted is None:
            return row
        return replace(row, change=row.sent - row.deleted)

    def _or_as_before(self, row: QueueStatus) -> QueueStatus:
        queue, now = row.depth.queue, self._clock.monotonic()
        if row.depth.visible is not None:
            self._counted[queue] = now, row
        if row.depth.visible is not None or queue not in self._counted:
            return row
        since, before = self._counted[queue]
        return replace(before, depth=replace(before.depth, error=row.depth.error), age_seconds=now - since)

    def _measure(self, queues: Sequence[Queue]) -> None:
        now = self._clock.monotonic()
        if queues and (self._measured_at is None or now - self._measured_at >= METRICS_SECONDS):
            self._measured = {each: self._metrics.measure(each, queues) for each in ASKED}
            self._measured_at = now

    def _row(self, depth: QueueDepth) -> QueueStatus:
        age, count, sent, deleted = (self._measured[each].figures.get(depth.queue) for each in ASKED)
        aged = replace(depth, oldest_age_seconds=age)
        if count is None:
            return QueueStatus(aged, sent=sent, deleted=deleted)
        return QueueStatus(
            aged, round(count), round(usd_of(count, depth.queue), 4), sent=sent, deleted=deleted
        )


def _near_quota(depth: QueueDepth) -> str | None:
    """A sentence about a queue close to its quota of messages in flight; `None` if it isn't."""
    if (depth.in_flight or 0) < MANY_IN_FLIGHT_MESSAGES:
        return None
    return (
        f"queue {depth.queue!r} has {depth.in_flight:,} messages in flight: beyond about "
        f"{IN_FLIGHT_MESSAGES:,} SQS hands out none, without an error, and tasks wait. Workers hold them, or "
        "have hidden them for a retry or an ETA."
    )


#: How long a worker that has stopped answering is shown.
MAX_SILENT_SECONDS: Final = 300

#: How many messages each worker describes.
MAX_HELD: Final = 50

#: Requests of a command to a worker: to send and receive the command, and the same for the answer.
REQUESTS_OF_A_COMMAND: Final = 4


class Answer(NamedTuple):
    """A worker's last answer, and when it came; `runs` is its answer to `sqs_held`."""

    at: float
    queues: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]] = ()


class WorkerAnswers:
    """The answers of the app's workers, or the last ones while workers can't be asked. The command's thread.

    With `with_runs`, workers are asked about their runs, too.
    """

    def __init__(
        self, app: Celery, timeout: float, clock: Clock = SYSTEM_CLOCK, *, with_runs: bool = False
    ) -> None:
        self._app = app
        self._timeout = timeout
        self._clock = clock
        self._with_runs = with_runs
        self._asked_at: float | None = None  # when they last answered
        self._answers: dict[str, Answer] = {}

    @property
    def requests(self) -> int:
        """About how many requests it takes to ask all of them."""
        return len(self._answers) * REQUESTS_OF_A_COMMAND * (2 if self._with_runs else 1)

    def add_to(self, taken: Status) -> Status:
        """Add the workers to a status, or a sentence that says why they are missing or outdated."""
        queues, missing = ask_or_say(self._app, "sqs_queues", self._timeout)
        runs: dict[str, Any] | None = {}
        if queues and self._with_runs:
            runs, unasked = ask_or_say(self._app, "sqs_held", self._timeout, list(queues), limit=MAX_HELD)
            missing = unasked if runs is None else ""
        now = self._clock.monotonic()
        if queues is not None and runs is not None:
            self._note(now, queues, runs)
        # Those that answered the latest question.
        workers = {node: each.queues for node, each in self._answers.items() if each.at == self._asked_at}
        rows, age = taken.queues, 0.0
        if self._asked_at is not None:
            rows = [replace(each, work=work_of(each.depth.queue, workers)) for each in rows]
            age = now - self._asked_at if workers else 0.0
        return replace(
            taken,
            queues=rows,
            workers=workers,
            workers_age_seconds=age,
            notes=(*taken.notes, f"{missing.rstrip('.')}.") if missing else taken.notes,
            silent={node: now - each.at for node, each in self._answers.items() if node not in workers},
            runs={node: each.runs for node, each in self._answers.items()},
        )

    def _note(self, now: float, queues: Mapping[str, Any], runs: Mapping[str, Any]) -> None:
        self._asked_at = now
        self._answers |= {
            node: Answer(now, answer, runs.get(node, {}).get("held", ())) for node, answer in queues.items()
        }
        self._answers = {
            node: each for node, each in self._answers.items() if now - each.at <= MAX_SILENT_SECONDS
        }
