"""Facts for the doctor's checks, and findings. Durations are seconds; `None` means unknown, or none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final

from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.redrive import Redrive, parse_redrive_policy
from celery_sqs_visibility.policy.options import Options, QueueOptions, entry_for
from celery_sqs_visibility.policy.queue_names import ARN, RETENTION
from celery_sqs_visibility.policy.quotas import DEFAULT_RETENTION_SECONDS, VISIBILITY_HORIZON_SECONDS

#: How many names a finding shows; the JSON report has all.
MAX_NAMES: Final = 20


class ProbeResult(Enum):
    """What a probe shows about a permission."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """A task of the app.

    Attributes:
        comes_back: whether it is a `VisibilityTask`, whose message comes back after a failure.
        acks_late: whether its message is deleted after its run.
        delays: after each of its failures, by its rules, up to `max_retries`, ignoring SQS's 12 hours.
        chooses: whether its author chose the exceptions after which it is retried (`autoretry_for`).
        repeats_by_default: whether it is retried after every exception only because of the app's `task_cls`.
    """

    name: str
    queue: str
    comes_back: bool = True
    chooses: bool = False
    repeats_by_default: bool = False
    acks_late: bool = True
    max_retries: int | None = 3
    delays: tuple[float, ...] = ()
    time_limit: float | None = None
    soft_time_limit: float | None = None
    priority: int | None = None

    @property
    def seconds_hidden(self) -> float:
        """For how long its failures hide its message in total."""
        return sum(min(delay, VISIBILITY_HORIZON_SECONDS) for delay in self.delays)


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """A queue, as far as SQS shows it.

    Attributes:
        name: Celery's name.
        location: where requests about it go; `None` if the settings are wrong.
        attributes: from GetQueueAttributes; `None` if unknown.
        problem: why the attributes are unknown, or the queue does not exist.
        denied: whether a permission is missing for that.
        exists: `None` if unknown.
        letters: its dead-letter queue, from the redrive policy or the option.
        permissions: results of the probes, by permission.
    """

    name: str
    url: str = ""
    location: Location | None = None
    options: QueueOptions = field(default_factory=lambda: Options.parse({}).for_queue(""))
    attributes: Mapping[str, str] | None = None
    problem: str = ""
    denied: bool = False
    exists: bool | None = True
    may_be_created: bool = True
    letters: QueueFacts | None = None
    permissions: Mapping[str, ProbeResult] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return (self.url or self.name).endswith(".fifo")

    def is_same(self, other: QueueFacts) -> bool:
        """Returns whether both are the same queue at SQS, whose URL may have several forms."""
        arns = [(each.attributes or {}).get(ARN) for each in (self, other)]
        return arns[0] == arns[1] if all(arns) else bool(self.url) and self.url == other.url

    @property
    def redrive(self) -> Redrive | None:
        """Its redrive policy."""
        return parse_redrive_policy(self.attributes or {})

    @property
    def retention(self) -> int:
        """How long the queue keeps a message; SQS's default if unknown."""
        return int((self.attributes or {}).get(RETENTION, DEFAULT_RETENTION_SECONDS))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine on which the command runs.

    Attributes:
        grace: seconds from SIGTERM to SIGKILL; infinity if unknown.
        grace_reason: a clause that says how that is known.
        remapped: whether SIGTERM is a cold shutdown (REMAP_SIGTERM=SIGQUIT).
        clock_offset: seconds by which its clock is ahead of SQS's.
    """

    grace: float = math.inf
    grace_reason: str = ""
    kubernetes: bool = False
    remapped: bool = False
    clock_offset: float | None = None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """An app, its queues and this machine.

    Attributes:
        settings: Celery's settings that differ from the defaults.
        command: the beginning of commands to paste.
        control_permissions: results of the probes for remote control, if it is on.
        unbound: Celery's error for each task that it refuses to route.
        scheduled: the task of each entry of `beat_schedule`; `None` if the entry names none.
        task_names: of all tasks of the app, including Celery's own.
        store_problem: why the store of `coordination_store` fails; empty if it works, or there is none.
        store_remedy: what to do about that, if known.
    """

    options: Options = field(default_factory=lambda: Options.parse({}))
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[TaskFacts, ...] = ()
    queues: tuple[QueueFacts, ...] = ()
    machine: Machine = field(default_factory=Machine)
    unbound: Mapping[str, str] = field(default_factory=dict)
    scheduled: Mapping[str, str | None] = field(default_factory=dict)
    task_names: frozenset[str] = frozenset()
    store_problem: str = ""
    store_remedy: str = ""
    command: str = "celery sqs"
    control_permissions: Mapping[str, ProbeResult] = field(default_factory=dict)

    def options_of_queues(self) -> list[tuple[str, QueueOptions, list[str]]]:
        """The options that queues share: their entry in the option `queues` or "", and the queues' names."""
        entries: dict[str, list[QueueFacts]] = {}
        for queue in self.queues:
            entries.setdefault(entry_for(self.options.queues, queue.name) or "", []).append(queue)
        return [(entry, found[0].options, [q.name for q in found]) for entry, found in entries.items()]

    def tasks_of(self, queue: str) -> list[TaskFacts]:
        """The tasks that are routed to the queue of Celery's name."""
        return [task for task in self.tasks if task.queue == queue]


class Severity(IntEnum):
    """The severity of a finding, the worst first."""

    ERROR = 0  # work is lost, or done twice
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the doctor's.

    Attributes:
        thing: the queue, task, setting or machine.
        problem: what is wrong with it, including values.
        consequence: a sentence about what follows.
        remedy: what to do, or to paste.
    """

    severity: Severity
    thing: str
    problem: str
    consequence: str
    remedy: str


def transport_option(name: str, value: object, queue: str = "") -> str:
    """The setting of a transport option, of all queues or of one."""
    given = {"queues": {queue: {name: value}}} if queue else {name: value}
    return f"broker_transport_options = {given!r}, beside your others"


def tasks_listed(names: list[str]) -> str:
    """The names of tasks, up to `MAX_NAMES`."""
    if len(names) == 1:
        return f"task {names[0]!r}"
    others = len(names) - MAX_NAMES
    shown = ", ".join(map(repr, names[:MAX_NAMES]))
    return f"tasks {shown} and {others} more" if others > 0 else f"tasks {shown}"


def and_more(names: list[str], kind: str) -> str:
    """The first of several things, and the number of the others."""
    others = len(names) - 1
    return f"{kind} {names[0]!r}" + (f" (and {others} more)" if others else "")
