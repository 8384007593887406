"""Checks of permissions, settings and runs; and the list of all checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from celery_sqs_visibility.operate.doctor import queue_checks
from celery_sqs_visibility.operate.doctor.facts import (
    Facts,
    Finding,
    ProbeResult,
    Severity,
    and_more,
    tasks_listed,
)
from celery_sqs_visibility.operate.doctor.facts import transport_option as option
from celery_sqs_visibility.operate.figures import duration_text, usd_of
from celery_sqs_visibility.operate.invocation import counted
from celery_sqs_visibility.operate.permission_table import (
    CHANGE_VISIBILITY,
    DELETE,
    GENERATE_DATA_KEY,
    GET_ATTRIBUTES,
    RECEIVE,
    SEND,
)
from celery_sqs_visibility.policy.options import QueueOptions, default_heartbeat
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.worker.drain import (
    ECS_STOP_SECONDS,
    GRACE_VARIABLE,
    MARGIN_SECONDS,
    time_of_runs,
)

#: Polls of an empty queue at `wait_time_seconds=0` are a second apart, or `polling_interval`.
SECONDS_A_DAY = 86_400

#: Longer polls of empty queues cost too little to be reported.
LONG_POLL_SECONDS = 10

#: A new task may wait this long for a poll; longer sleeps are reported.
LONG_SLEEP_SECONDS = 5

#: The consequence of a missing permission, by its name.
WITHOUT = {
    RECEIVE: "Workers get no messages.",
    DELETE: "A task that has succeeded runs again, until its queue gives it up.",
    CHANGE_VISIBILITY: "Nothing is extended: a task that outlasts its visibility timeout runs "
    "twice, and a failed one comes back when the timeout ends.",
    SEND: "Producers cannot publish, and a worker cannot send on messages with a far ETA.",
    GET_ATTRIBUTES: "Workers can't read the redrive policy, so messages that fail for good are kept.",
    GENERATE_DATA_KEY: "Nothing can be sent to the queue.",
}

#: The consequence of a setting of Celery's without the option remote_control.
WITHOUT_CONTROL = {
    "worker_enable_remote_control": "Workers do not respond to `celery inspect` and `celery control`.",
    "worker_send_task_events": "No monitor gets these events: they are dropped, without a request.",
}

#: Permissions that a worker does not need if its tasks have no far ETA.
PRODUCERS = frozenset({SEND, GENERATE_DATA_KEY})

#: With less, a throttled or slow request comes too late to extend a message.
MIN_HEARTBEAT_SECONDS = 5

#: With less, a worker that stops for a moment loses the messages of its runs.
MIN_VISIBILITY_SECONDS = 30

#: With more, the messages of a killed worker wait longer than anybody expects.
MAX_VISIBILITY_SECONDS = 900

#: SQS accepts signatures that are up to five minutes off.
MAX_CLOCK_OFFSET_SECONDS = 240
NOTABLE_OFFSET_SECONDS = 5


def check_permissions(facts: Facts) -> Iterator[Finding]:
    """Permissions on queues that are missing."""
    for queue in facts.queues:
        denied = [name for name, permission in queue.permissions.items() if permission is ProbeResult.DENIED]
        for name in denied:
            yield Finding(
                Severity.WARNING if name in PRODUCERS else Severity.ERROR,
                f"queue {queue.name!r}",
                f"{name} is not allowed to these credentials",
                WITHOUT.get(name, "Requests that need this permission fail."),
                f"{facts.command} permissions worker (or producer) prints the policy to give them; who "
                f"only publishes needs {SEND} alone",
            )


def check_permissions_on_dead_letters(facts: Facts) -> Iterator[Finding]:
    """Permissions on dead-letter queues that are missing."""
    for queue in facts.queues:
        if queue.letters and ProbeResult.DENIED in queue.letters.permissions.values():
            yield Finding(
                Severity.WARNING,
                f"dead-letter queue {queue.letters.name!r}",
                f"{SEND} is not allowed to these credentials",
                "Its dead letters come without a reason, when SQS moves them."
                if queue.redrive
                else "What fails for good stays in its queue, and is not run again.",
                f"{facts.command} permissions worker prints the policy to give them",
            )


def check_unknown_permissions(facts: Facts) -> Iterator[Finding]:
    """Permissions that can't be probed."""
    permissions = [pair for queue in facts.queues for pair in queue.permissions.items()]
    unknown = dict.fromkeys(name for name, permission in permissions if permission is ProbeResult.NOT_KNOWN)
    if unknown:
        yield Finding(
            Severity.NOTE,
            "permissions",
            f"it is not known whether these are allowed: {', '.join(unknown)}",
            "No harmless request shows them; SQS did not refuse the most similar one.",
            f"{facts.command} permissions worker prints the policy to compare with",
        )


def check_routes(facts: Facts) -> Iterator[Finding]:
    """Tasks that are routed to a queue to which they can't be published."""
    for task, sentence in facts.unbound.items():
        yield Finding(
            Severity.ERROR,
            f"task {task!r}",
            f"it cannot be routed: {sentence}; task_create_missing_queues is False",
            "Publishing the task raises QueueNotFound.",
            "add the queue to task_queues, or correct task_routes",
        )


def check_schedule(facts: Facts) -> Iterator[Finding]:
    """Entries of beat with a task that the app does not have."""
    for entry, task in facts.scheduled.items():
        if task not in facts.task_names:
            yield Finding(
                Severity.WARNING,
                f"beat_schedule entry {entry!r}",
                f"its task is {task!r}, and the app has no task of that name",
                "Beat sends it, and no worker of this app runs it: each message becomes a dead letter.",
                "correct the name, or import the task's module; if another app's workers run it, all is well",
            )


def check_priorities(facts: Facts) -> Iterator[Finding]:
    """Tasks with a priority."""
    urgent = [task.name for task in facts.tasks if task.priority is not None]
    if urgent:
        yield Finding(
            Severity.WARNING,
            tasks_listed(urgent),
            "it has a priority",
            "SQS has no priorities: its messages wait behind all others.",
            "route it to a queue of its own, and set the option queue_order='strict'",
        )


def check_polls(facts: Facts) -> Iterator[Finding]:
    """Idle workers that make too many requests, or that sleep while there is work."""
    for entry, own, names in facts.options_of_queues():
        if own.wait_time_seconds < LONG_POLL_SECONDS:
            pace = max(1.0, own.wait_time_seconds + own.polling_interval)
            usd, least = (usd_of(30 * SECONDS_A_DAY / each, names[0]) for each in (pace, WAIT_TIME_SECONDS))
            yield Finding(
                Severity.NOTE if own.wait_time_seconds else Severity.WARNING,
                and_more(names, "queue"),
                f"wait_time_seconds is {own.wait_time_seconds}",
                f"For each queue an idle worker makes {SECONDS_A_DAY / pace:,.0f} requests a day, "
                f"USD {usd:.2f} a month; at 20 s they are 4,320, USD {least:.2f}.",
                option("wait_time_seconds", 20, entry),
            )
        if own.polling_interval_max > LONG_SLEEP_SECONDS:
            yield Finding(
                Severity.NOTE,
                and_more(names, "queue"),
                f"workers sleep up to {duration_text(own.polling_interval_max)} after an empty poll",
                "A task that is sent meanwhile waits that long.",
                option("polling_interval_max", own.polling_interval, entry),
            )


def check_remote_control(facts: Facts) -> Iterator[Finding]:
    """Remote control that the settings and the option disagree about, or that is not permitted."""
    for name, consequence in WITHOUT_CONTROL.items():
        if facts.settings.get(name) and not facts.options.remote_control:
            yield Finding(
                Severity.NOTE,
                f"setting {name}",
                "it is True, and the option remote_control is not set",
                consequence,
                option("remote_control", True),
            )
    if facts.options.remote_control and facts.settings.get("worker_enable_remote_control") is False:
        yield Finding(
            Severity.WARNING,
            "option remote_control",
            "it is set, and the setting worker_enable_remote_control is False",
            "Workers take no commands: `celery inspect` finds none, and no monitor gets their events.",
            "remove worker_enable_remote_control, or the option",
        )
    for name, permission in facts.control_permissions.items():
        if permission is ProbeResult.DENIED:
            yield Finding(
                Severity.WARNING,
                "option remote_control",
                f"it is set, and {name} is not allowed to these credentials",
                "`celery inspect` finds no workers (status 77), and queues of killed workers stay.",
                f"{facts.command} permissions worker (or operator) prints the policy to give them",
            )


def check_early_acks(facts: Facts) -> Iterator[Finding]:
    """Tasks whose message is deleted before their run."""
    early = [task.name for task in facts.tasks if not task.acks_late]
    if early:
        yield Finding(
            Severity.WARNING,
            tasks_listed(early),
            "its message is deleted before it runs (acks_late=False)",
            "If the worker is killed, or its grace period ends, the task is lost.",
            "base=VisibilityTask, or acks_late=True and an idempotent task",
        )


def check_repeats(facts: Facts) -> Iterator[Finding]:
    """Tasks that run again after any exception, perhaps without their author's knowledge."""
    tasks = [task for task in facts.tasks if task.repeats_by_default]
    if tasks:
        most = max(task.max_retries or 0 for task in tasks)
        yield Finding(
            Severity.NOTE,
            tasks_listed([task.name for task in tasks]),
            f"after each exception {'they run' if len(tasks) > 1 else 'it runs'} again, up to "
            f"{counted(most, 'time')} (task_cls=VisibilityTask)",
            "What a run did before the exception is done again: a task that charges a card, and then fails, "
            f"charges it {most + 1} times.",
            "max_retries=0, or autoretry_for=(...) with exceptions to retry; to retry all, max_retries=3",
        )


def check_horizon(facts: Facts) -> Iterator[Finding]:
    """Time limits beyond the 12 hours for which SQS hides a message."""
    limits = {task.name: task.time_limit or task.soft_time_limit or 0 for task in facts.tasks}
    if long := [name for name, limit in limits.items() if limit > VISIBILITY_HORIZON_SECONDS]:
        yield Finding(
            Severity.ERROR,
            tasks_listed(long),
            "its time limit is longer than 12 h",
            "SQS makes a message visible again 12 h after its receive: two runs of the task overlap.",
            "time_limit=43000 or less, and self.visibility.continue_later() for the rest",
        )


def check_long_delays(facts: Facts) -> Iterator[Finding]:
    """Delays of failed messages beyond the 12 hours."""
    long = [t.name for t in facts.tasks if max(t.delays, default=0) > VISIBILITY_HORIZON_SECONDS]
    if long:
        yield Finding(
            Severity.WARNING,
            tasks_listed(long),
            "the delay after a failure is longer than 12 h",
            "SQS hides a message for 12 h at most, and then it comes back.",
            "default_retry_delay=43200 or less; or self.retry(countdown=...), which sends a new message",
        )


def check_heartbeat(facts: Facts) -> Iterator[Finding]:
    """Messages of running tasks that are extended too late, or not at all."""
    for entry, own, names in facts.options_of_queues():
        if not own.heartbeat_interval:
            yield from _without_heartbeat(facts, own, names)
        elif own.visibility_timeout < MIN_VISIBILITY_SECONDS:
            yield Finding(
                Severity.WARNING,
                and_more(names, "queue"),
                f"visibility_timeout is {duration_text(own.visibility_timeout)}",
                "A worker that is blocked for that long loses its running messages, and they run twice.",
                option("visibility_timeout", 120, entry),
            )
        elif own.heartbeat_interval < MIN_HEARTBEAT_SECONDS:
            yield Finding(
                Severity.WARNING,
                and_more(names, "queue"),
                f"heartbeat_interval is {duration_text(own.heartbeat_interval)}: a message is extended that "
                "shortly before it comes back",
                "A request that is throttled or slow comes too late, and the task runs twice.",
                option("heartbeat_interval", default_heartbeat(own.visibility_timeout), entry),
            )
        elif own.visibility_timeout > MAX_VISIBILITY_SECONDS:
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
            or "start the store, allow connections from here, or correct coordination_store",
        )


def check_shutdown(facts: Facts) -> Iterator[Finding]:
    """Workers that are killed before they can finish their shutdown."""
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
        "Running tasks are cut off at once, and start again; shutdown_timeout has no effect."
        if not soft
        else f"The worker is killed before: {facts.machine.grace_reason}.",
        "unset REMAP_SIGTERM: the warm shutdown gives running tasks back after shutdown_timeout",
    )


def check_clock(facts: Facts) -> Iterator[Finding]:
    """A clock that differs from SQS's."""
    offset = facts.machine.clock_offset
    if offset is None or abs(offset) < NOTABLE_OFFSET_SECONDS:
        return
    refused = abs(offset) > MAX_CLOCK_OFFSET_SECONDS
    yield Finding(
        Severity.ERROR if refused else Severity.WARNING,
        "this machine's clock",
        f"it is {duration_text(round(abs(offset)))} {'ahead of' if offset > 0 else 'behind'} SQS's",
        "SQS refuses signatures that are five minutes off: nothing is received."
        if refused
        else "Tasks with an ETA start too early or too late by as much, and their attempts are miscounted.",
        "synchronise the clock: chronyc makestep, or enable NTP",
    )


#: All checks, the most harmful findings first.
CHECKS: Final = (
    queue_checks.check_existence,
    check_permissions,
    check_permissions_on_dead_letters,
    check_routes,
    check_schedule,
    queue_checks.check_dead_letters,
    queue_checks.check_receives,
    queue_checks.check_short_retention,
    queue_checks.check_retention,
    queue_checks.check_dead_letter_queues,
    queue_checks.check_endless_retries,
    queue_checks.check_in_flight,
    check_store,
    check_heartbeat,
    check_horizon,
    check_long_delays,
    check_early_acks,
    check_repeats,
    check_shutdown,
    check_clock,
    check_priorities,
    check_remote_control,
    check_polls,
    queue_checks.check_queue_delays,
    check_unknown_permissions,
)


def findings_of(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    return sorted(
        (finding for check in CHECKS for finding in check(facts)), key=lambda finding: finding.severity
    )
