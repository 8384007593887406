"""Checks of options and permissions: missing ones, contradictions, and options that cost money."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqs_visibility.operate.doctor.facts import Facts, Finding, Permission, Severity, and_more, listed
from celery_sqs_visibility.operate.doctor.facts import transport_option as option
from celery_sqs_visibility.operate.figures import duration_text, usd_of
from celery_sqs_visibility.operate.permission_table import (
    CHANGE_VISIBILITY,
    DELETE,
    GENERATE_DATA_KEY,
    GET_ATTRIBUTES,
    RECEIVE,
    SEND,
)
from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS

#: Polls of an empty queue at `wait_time_seconds=0` are a second apart, or `polling_interval`.
SECONDS_A_DAY = 86_400

SECONDS_A_MONTH = 30 * SECONDS_A_DAY

#: Longer polls of empty queues cost too little to be reported.
LONG_POLL_SECONDS = 10

#: A new task may wait this long for a poll; longer sleeps are reported.
LONG_SLEEP_SECONDS = 5

#: Consequence of a missing permission, by its name.
WITHOUT = {
    RECEIVE: "Workers get no messages.",
    DELETE: "A task that has succeeded runs again, until its queue gives it up.",
    CHANGE_VISIBILITY: "Nothing is extended: a task that outlasts its visibility timeout runs "
    "twice, and a failed one comes back when that is over.",
    SEND: "Producers cannot publish, and a worker cannot send on messages with a far ETA.",
    GET_ATTRIBUTES: "A worker does not learn the redrive policy, so what fails for good is kept.",
    GENERATE_DATA_KEY: "Nothing can be sent to the queue.",
}

#: Consequence of a setting of Celery's without the option remote_control.
WITHOUT_CONTROL = {
    "worker_enable_remote_control": "Workers answer no `celery inspect`, and take no `celery control`.",
    "worker_send_task_events": "No monitor hears of these events: they are dropped, without a request.",
}

#: Permissions that a worker does not need if its tasks have no far ETA.
PRODUCERS = frozenset({SEND, GENERATE_DATA_KEY})


def check_permissions(facts: Facts) -> Iterator[Finding]:
    """Permissions that are missing on queues."""
    for queue in facts.queues:
        denied = [name for name, permission in queue.permissions.items() if permission is Permission.DENIED]
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
    """Permissions that are missing on dead-letter queues."""
    for queue in facts.queues:
        if queue.letters and Permission.DENIED in queue.letters.permissions.values():
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
    """Permissions that no probe shows."""
    permissions = [pair for queue in facts.queues for pair in queue.permissions.items()]
    unknown = dict.fromkeys(name for name, permission in permissions if permission is Permission.NOT_KNOWN)
    if unknown:
        yield Finding(
            Severity.NOTE,
            "permissions",
            f"it is not known whether these are allowed: {', '.join(unknown)}",
            "No request that changes nothing shows them; SQS did not refuse the one that comes nearest.",
            f"{facts.command} permissions worker prints the policy to compare with",
        )


def check_routes(facts: Facts) -> Iterator[Finding]:
    """Tasks that are routed to a queue that publishing refuses."""
    for task, sentence in facts.unbound.items():
        yield Finding(
            Severity.ERROR,
            f"task {task!r}",
            f"it cannot be routed: {sentence}; task_create_missing_queues is False",
            "Publishing the task raises QueueNotFound.",
            "add the queue to task_queues, or correct task_routes",
        )


def check_schedule(facts: Facts) -> Iterator[Finding]:
    """Entries of beat whose task the app does not have."""
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
            listed(urgent, "task"),
            "it has a priority",
            "SQS has no priorities: its messages wait behind all others.",
            "route it to a queue of its own, and set the option queue_order='strict'",
        )


def check_polls(facts: Facts) -> Iterator[Finding]:
    """Idle workers that make too many requests, or sleep while there is work."""
    for entry, own, names in facts.options_of_queues():
        if own.wait_time_seconds < LONG_POLL_SECONDS:
            pace = max(1.0, own.wait_time_seconds + own.polling_interval)
            usd, least = (usd_of(SECONDS_A_MONTH / each, names[0]) for each in (pace, WAIT_TIME_SECONDS))
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
                "A task that is sent meanwhile waits for as long.",
                option("polling_interval_max", own.polling_interval, entry),
            )


def check_remote_control(facts: Facts) -> Iterator[Finding]:
    """Remote control that settings want and the option leaves off, or the reverse, or without permission."""
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
            "Workers take no commands: `celery inspect` finds none, and no monitor hears of their events.",
            "remove worker_enable_remote_control, or the option",
        )
    for name, permission in facts.control_permissions.items():
        if permission is Permission.DENIED:
            yield Finding(
                Severity.WARNING,
                "option remote_control",
                f"it is set, and {name} is not allowed to these credentials",
                "`celery inspect` finds no workers (status 77), and queues of killed workers stay.",
                f"{facts.command} permissions worker (or operator) prints the policy to give them",
            )
