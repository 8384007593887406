"""Checks of runs: heartbeat, 12 hours, repeats, store, shutdown, clock."""

from __future__ import annotations

import math
from collections.abc import Iterator

from celery_sqs_visibility.operate.doctor.facts import Facts, Finding, Severity, and_more, listed
from celery_sqs_visibility.operate.doctor.facts import transport_option as option
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import counted
from celery_sqs_visibility.policy.options import QueueOptions, default_heartbeat
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.worker.drain import (
    ECS_STOP_SECONDS,
    GRACE_VARIABLE,
    MARGIN_SECONDS,
    time_of_runs,
)

#: Less, and a request that is throttled, or slow, comes too late to extend a message.
SHORTEST_MARGIN_SECONDS = 5

#: Less, and a worker that stands still for a moment loses what it runs.
SHORTEST_VISIBILITY_SECONDS = 30

#: More, and the work of a killed worker waits longer than anybody expects: the heartbeat makes it needless.
LONGEST_VISIBILITY_SECONDS = 900

#: SQS accepts signatures up to five minutes off.
REFUSED_OFFSET_SECONDS = 240
NOTABLE_OFFSET_SECONDS = 5


def check_early_acks(facts: Facts) -> Iterator[Finding]:
    """Tasks whose message is deleted before their run."""
    early = [task.name for task in facts.tasks if not task.acks_late]
    if early:
        yield Finding(
            Severity.WARNING,
            listed(early, "task"),
            "its message is deleted before it runs (acks_late=False)",
            "A worker that is killed, or ends with its grace period, takes the task with it.",
            "base=VisibilityTask, or acks_late=True and an idempotent task",
        )


def check_repeats(facts: Facts) -> Iterator[Finding]:
    """Tasks that are repeated after any exception, perhaps unknown to their author."""
    tasks = [task for task in facts.tasks if task.repeats_by_default]
    if tasks:
        most = max(task.max_retries or 0 for task in tasks)
        yield Finding(
            Severity.NOTE,
            listed([task.name for task in tasks], "task"),
            f"after each exception {'they run' if len(tasks) > 1 else 'it runs'} again, up to "
            f"{counted(most, 'time')} (task_cls=VisibilityTask)",
            "What a run did before the exception is done again: a task that charges a card, and then fails, "
            f"charges it {most + 1} times.",
            "max_retries=0, or autoretry_for=(...) with what may be tried again; if all may, max_retries=3",
        )


def check_horizon(facts: Facts) -> Iterator[Finding]:
    """Time limits beyond the 12 hours for which SQS hides a message."""
    limits = {task.name: task.time_limit or task.soft_time_limit or 0 for task in facts.tasks}
    if long := [name for name, limit in limits.items() if limit > VISIBILITY_HORIZON_SECONDS]:
        yield Finding(
            Severity.ERROR,
            listed(long, "task"),
            "its time limit is longer than 12 h",
            "SQS shows a message again 12 h after its receive: the task runs twice at a time.",
            "time_limit=43000 or less, and self.visibility.continue_later() for the rest",
        )


def check_long_delays(facts: Facts) -> Iterator[Finding]:
    """Delays of failed messages beyond the 12 hours."""
    long = [t.name for t in facts.tasks if max(t.delays, default=0) > VISIBILITY_HORIZON_SECONDS]
    if long:
        yield Finding(
            Severity.WARNING,
            listed(long, "task"),
            "the delay after a failure is longer than 12 h",
            "SQS hides a message for 12 h at the most: it comes back then.",
            "default_retry_delay=43200 or less; or self.retry(countdown=...), which sends a new message",
        )


def check_heartbeat(facts: Facts) -> Iterator[Finding]:
    """Messages of running tasks that are not extended, or too late."""
    for entry, own, names in facts.options_of_queues():
        if not own.heartbeat_interval:
            yield from _without_heartbeat(facts, own, names)
        elif own.visibility_timeout < SHORTEST_VISIBILITY_SECONDS:
            yield Finding(
                Severity.WARNING,
                and_more(names, "queue"),
                f"visibility_timeout is {duration_text(own.visibility_timeout)}",
                "A worker that stands still for so long loses the messages that it runs, and they run twice.",
                option("visibility_timeout", 120, entry),
            )
        elif own.heartbeat_interval < SHORTEST_MARGIN_SECONDS:
            yield Finding(
                Severity.WARNING,
                and_more(names, "queue"),
                f"heartbeat_interval is {duration_text(own.heartbeat_interval)}: a message is extended that "
                "shortly before it comes back",
                "A request that is throttled or slow comes too late, and the task runs twice.",
                option("heartbeat_interval", default_heartbeat(own.visibility_timeout), entry),
            )
        elif own.visibility_timeout > LONGEST_VISIBILITY_SECONDS:
            yield _long_timeout(entry, own, names)


def _long_timeout(entry: str, own: QueueOptions, names: list[str]) -> Finding:
    return Finding(
        Severity.WARNING,
        and_more(names, "queue"),
        f"visibility_timeout is {duration_text(own.visibility_timeout)}",
        "The messages of a killed worker wait that long. The heartbeat extends them: a long task needs "
        "no long timeout.",
        option("visibility_timeout", 120, entry),
    )


def _without_heartbeat(facts: Facts, own: QueueOptions, names: list[str]) -> Iterator[Finding]:
    timeout = own.visibility_timeout
    tasks = [task for task in facts.tasks if task.queue in names]
    long = [task.name for task in tasks if (task.time_limit or math.inf) > timeout]
    if long:
        yield Finding(
            Severity.ERROR,
            and_more(names, "queue"),
            f"the heartbeat is off, visibility_timeout is {duration_text(timeout)}, and "
            f"{and_more(long, 'task')} may run longer",
            "The message comes back while its task runs, and another worker runs it, too.",
            "remove heartbeat_interval=0, or give the task a time_limit below the visibility timeout",
        )


def check_store(facts: Facts) -> Iterator[Finding]:
    """A store of exclusive tasks that cannot be used."""
    if facts.store_problem:
        yield Finding(
            Severity.ERROR,
            "coordination_store",
            f"it cannot be used from here: {facts.store_problem.rstrip('.')}",
            "Exclusive tasks do not run, and two beats send each task to a standard queue twice.",
            facts.store_remedy
            or "start the store, open the way to it from here, or correct coordination_store",
        )


def check_shutdown(facts: Facts) -> Iterator[Finding]:
    """Workers that are killed before they have ended."""
    machine = facts.machine
    timeout = time_of_runs(facts.options.shutdown_timeout, machine.grace)
    if machine.remapped:
        yield from _cold_shutdown(facts)
        return
    needed = math.ceil(timeout + MARGIN_SECONDS)
    remedy = (
        f"{option('shutdown_timeout', 25)}; or stopTimeout (ECS) or terminationGracePeriodSeconds "
        f"(Kubernetes) of {needed} or more, and the same as {GRACE_VARIABLE} in the environment"
    )
    consequence = "Messages of running tasks are not given back, and stay hidden for a visibility timeout."
    if needed > machine.grace:
        problem = f"it is {duration_text(timeout)}, but {machine.grace_reason}"
        yield Finding(Severity.WARNING, "shutdown_timeout", problem, consequence, remedy)
    elif machine.grace == math.inf and needed > ECS_STOP_SECONDS:
        pod = "Kubernetes kills" if machine.kubernetes else "ECS and Kubernetes kill"
        yield Finding(
            Severity.WARNING if machine.kubernetes else Severity.NOTE,
            "shutdown_timeout",
            f"it is {duration_text(timeout)}, and {pod} {ECS_STOP_SECONDS} s after SIGTERM unless told "
            f"otherwise; {GRACE_VARIABLE} does not say",
            consequence,
            remedy,
        )


def _cold_shutdown(facts: Facts) -> Iterator[Finding]:
    soft = float(facts.settings.get("worker_soft_shutdown_timeout") or 0)
    longest = facts.machine.grace - MARGIN_SECONDS
    if 0 < soft <= longest:
        return
    yield Finding(
        Severity.WARNING,
        "REMAP_SIGTERM",
        f"SIGTERM is a cold shutdown (SIGQUIT), and worker_soft_shutdown_timeout is {duration_text(soft)}",
        "Running tasks are cut off at once, and begin anew; shutdown_timeout does not count."
        if not soft
        else f"The worker is killed before: {facts.machine.grace_reason}.",
        "unset REMAP_SIGTERM: the warm shutdown gives running tasks back after shutdown_timeout",
    )


def check_clock(facts: Facts) -> Iterator[Finding]:
    """A clock that differs from SQS's."""
    offset = facts.machine.clock_offset
    if offset is None or abs(offset) < NOTABLE_OFFSET_SECONDS:
        return
    refused = abs(offset) > REFUSED_OFFSET_SECONDS
    yield Finding(
        Severity.ERROR if refused else Severity.WARNING,
        "this machine's clock",
        f"it is {duration_text(round(abs(offset)))} {'ahead of' if offset > 0 else 'behind'} SQS's",
        "SQS refuses signatures that are five minutes off: nothing is received."
        if refused
        else "Tasks with an ETA start too early or too late by as much, and their attempts are miscounted.",
        "synchronise the clock: chronyc makestep, or enable NTP",
    )
