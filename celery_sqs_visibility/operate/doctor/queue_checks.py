"""Checks of queues: existence, dead letters, receives, retention, messages in flight, delays."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from celery_sqs_visibility.aws.queues import HIDDEN
from celery_sqs_visibility.aws.redrive import Redrive
from celery_sqs_visibility.operate.aws_commands import create_queue, set_attributes
from celery_sqs_visibility.operate.doctor.facts import (
    Facts,
    Finding,
    QueueFacts,
    Severity,
    TaskFacts,
    and_more,
    tasks_listed,
)
from celery_sqs_visibility.operate.doctor.facts import transport_option as option
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.policy.provisioning import (
    MAX_RECEIVES,
    SPARE_RECEIVES,
    dead_letter_attributes,
    dead_letter_name,
    required_max_receive_count,
)
from celery_sqs_visibility.policy.queue_names import ARN, beside, redrive_policy
from celery_sqs_visibility.policy.quotas import (
    DEFAULT_RETENTION_SECONDS,
    DELAY_SECONDS,
    IN_FLIGHT_MESSAGES,
    MANY_IN_FLIGHT_MESSAGES,
    RETENTION_SECONDS,
)

#: With less, a night without workers loses tasks.
SHORT_RETENTION_SECONDS: Final = 86_400

#: With fewer receives, one or two deploys move a message that has not failed.
MIN_RECEIVES: Final = 3


def check_existence(facts: Facts) -> Iterator[Finding]:
    """Queues that do not exist, or that can't be inspected."""
    for queue in facts.queues:
        if queue.exists is False:
            yield _missing(queue, facts.command)
        elif queue.attributes is None and queue.problem:
            yield _unseen(queue, facts.command)


def _unseen(queue: QueueFacts, command: str) -> Finding:
    if not queue.denied:
        consequence = "It is not checked, and workers may not be able to use it either."
    elif queue.url:
        consequence = (
            "Its redrive policy and retention are not checked. A worker that may not read the redrive "
            "policy keeps what failed for good, in place of deleting it."
        )
    else:
        consequence = "Workers do not start, and publishing fails. Nothing else of it is checked."
    return Finding(
        Severity.WARNING if queue.denied and queue.url else Severity.ERROR,
        f"queue {queue.name!r}",
        f"it cannot be looked at: {queue.problem}",
        consequence,
        f"allow sqs:GetQueueUrl and sqs:GetQueueAttributes; {command} permissions worker prints all"
        if queue.denied
        else "do as the sentence says, and run the command again",
    )


def _missing(queue: QueueFacts, command: str) -> Finding:
    created = queue.may_be_created
    return Finding(
        Severity.WARNING if created else Severity.ERROR,
        f"queue {queue.name!r}",
        queue.problem or "SQS has no such queue",
        "The first worker or producer creates it with its dead-letter queue, if it may."
        if created
        else "Workers do not start, and publishing fails.",
        f"{command} queues create {'-- ' if queue.name.startswith('-') else ''}{shlex.quote(queue.name)}"
        if created
        else "create the queue in its account, or correct its name or URL",
    )


def check_dead_letters(facts: Facts) -> Iterator[Finding]:
    """Queues without a dead-letter queue for messages after their last attempt."""
    for queue in facts.queues:
        if queue.attributes is None or queue.redrive or queue.options.dead_letter_queue:
            continue
        kept = queue.options.when_exhausted == "keep"
        consequence = (
            "A message after its last attempt comes back every hour until its retention ends, and one that "
            "kills its worker each time is tried until then."
            if kept
            else "A message after its last attempt is deleted, and one that kills its worker each time is "
            "tried until its retention ends."
        )
        yield Finding(
            Severity.WARNING if kept else Severity.ERROR,
            f"queue {queue.name!r}",
            f"it has no dead-letter queue, and when_exhausted is {queue.options.when_exhausted!r}",
            consequence + (" Its FIFO group waits behind it." if kept and queue.fifo else ""),
            _new_dead_letter_queue(queue, facts),
        )


def _new_dead_letter_queue(queue: QueueFacts, facts: Facts) -> str:
    name = dead_letter_name(queue.url.rpartition("/")[2])
    arn = beside((queue.attributes or {}).get(ARN, ""), name)
    tasks = [task for task in facts.tasks_of(queue.name) if task.comes_back]
    return f"{_create_dead_letter_queue(name, queue)} && {_redrive(queue, arn, tasks)}"


def _redrive(queue: QueueFacts, dead_letter_arn: str, tasks: Sequence[TaskFacts]) -> str:
    """The command that sets a redrive policy with enough receives for all attempts of these tasks."""
    receives = required_max_receive_count(task.max_retries for task in tasks)
    return set_attributes(
        queue.url, queue.location, RedrivePolicy=redrive_policy(dead_letter_arn, str(receives))
    )


def _create_dead_letter_queue(name: str, source: QueueFacts) -> str:
    return create_queue(name, source.location, **dead_letter_attributes(name))


def check_receives(facts: Facts) -> Iterator[Finding]:
    """Redrive policies with fewer receives than the tasks' attempts and deploys need."""
    for queue in facts.queues:
        redrive, tasks = queue.redrive, facts.tasks_of(queue.name)
        if redrive is None:
            continue
        limited = [t for t in tasks if t.comes_back and t.max_retries is not None]
        task = max(limited, key=lambda each: each.max_retries or 0, default=None)
        needed = (task.max_retries or 0) + 1 + SPARE_RECEIVES if task else 0
        if task and redrive.max_receive_count < needed:
            yield _too_few_receives(queue, redrive, task)
            continue
        late = [t.name for t in tasks if t.acks_late]
        if late and redrive.max_receive_count < MIN_RECEIVES:
            yield _no_spare_receive(queue, redrive, late)


def _no_spare_receive(queue: QueueFacts, redrive: Redrive, tasks: list[str]) -> Finding:
    most = redrive.max_receive_count
    return Finding(
        Severity.WARNING,
        f"queue {queue.name!r}",
        f"maxReceiveCount is {most}, for {and_more(tasks, 'task')}",
        f"A deploy or a crash during a run is a receive, too: SQS moves a message after {most}, even if it "
        "has never failed.",
        _redrive(queue, redrive.dead_letter_arn, []),
    )


def _too_few_receives(queue: QueueFacts, redrive: Redrive, task: TaskFacts) -> Finding:
    attempts, most = (task.max_retries or 0) + 1, redrive.max_receive_count
    spare = most - attempts
    consequence = (
        f"SQS moves the message after {most} receives: {-spare} of its {attempts} attempts never run."
        if spare < 0
        else "Each deploy during a run, each crash, and a wait for an ETA is a receive, too, and takes an "
        f"attempt away{f' after {spare}' if spare else ''}."
    )
    fewer = f"max_retries={MAX_RECEIVES - 1 - SPARE_RECEIVES} or less; SQS takes no larger maxReceiveCount"
    return Finding(
        Severity.ERROR if spare < 0 else Severity.WARNING,
        f"queue {queue.name!r}",
        f"maxReceiveCount is {most}, and task {task.name!r} has max_retries={task.max_retries}",
        consequence,
        _redrive(queue, redrive.dead_letter_arn, [task]) if most < MAX_RECEIVES else fewer,
    )


def check_endless_retries(facts: Facts) -> Iterator[Finding]:
    """Tasks without a limit of attempts in queues without one."""
    for queue in facts.queues:
        endless = [t for t in facts.tasks_of(queue.name) if t.comes_back and t.max_retries is None]
        if endless and queue.attributes is not None and not queue.redrive:
            yield Finding(
                Severity.WARNING,
                tasks_listed([each.name for each in endless]),
                f"max_retries is None, and queue {queue.name!r} has no redrive policy",
                "A task that always fails runs until the message's retention ends "
                f"({duration_text(queue.retention)}), and then the message is deleted.",
                "set max_retries on the task, or give the queue a redrive policy",
            )


def check_short_retention(facts: Facts) -> Iterator[Finding]:
    """Queues that delete messages sooner than their workers may come back."""
    for queue in facts.queues:
        if queue.attributes is not None and queue.retention < SHORT_RETENTION_SECONDS:
            yield Finding(
                Severity.WARNING,
                f"queue {queue.name!r}",
                f"it keeps a message for {duration_text(queue.retention)}",
                "After a backlog or a failure of the workers that lasts longer, SQS deletes tasks that have "
                "not run, without a dead letter.",
                set_attributes(queue.url, queue.location, MessageRetentionPeriod=DEFAULT_RETENTION_SECONDS),
            )


def check_retention(facts: Facts) -> Iterator[Finding]:
    """Queues that delete a message before its last attempt: a hidden message ages, too."""
    for queue in facts.queues:
        retention = queue.retention
        tasks = [t for t in facts.tasks_of(queue.name) if t.comes_back and t.seconds_hidden > retention / 2]
        if queue.attributes is None or not tasks:
            continue
        task = max(tasks, key=lambda each: each.seconds_hidden)
        total, whose = task.seconds_hidden, "its" if len(tasks) == 1 else "up to"
        longer = min(RETENTION_SECONDS, int(total * 2))
        yield Finding(
            Severity.ERROR if total >= retention else Severity.WARNING,
            tasks_listed([each.name for each in tasks]),
            f"the delays after {whose} {len(task.delays)} failures come to {duration_text(total)}, and queue "
            f"{queue.name!r} keeps a message for {duration_text(retention)}",
            "SQS deletes the message before its last attempt, without a dead letter."
            if total >= retention
            else "After a backlog, or a day without workers, SQS deletes it before its last attempt.",
            set_attributes(queue.url, queue.location, MessageRetentionPeriod=longer)
            if longer > retention and total < RETENTION_SECONDS
            else "lower max_retries or error_visibility_timeout",
        )


def check_dead_letter_queues(facts: Facts) -> Iterator[Finding]:
    """Dead-letter queues that lose messages."""
    for queue in facts.queues:
        letters = queue.letters
        if letters is None:
            continue
        if letters.exists is False:
            yield _no_such_letters(queue, letters)
        elif letters.attributes is not None:
            yield from _short_retention(queue, letters)
            yield from _unfit(queue, letters, facts)


def _no_such_letters(queue: QueueFacts, letters: QueueFacts) -> Finding:
    return Finding(
        Severity.ERROR,
        f"queue {queue.name!r}",
        f"its dead-letter queue {letters.name!r} does not exist",
        "What fails for good stays in the queue until its retention ends, and is not run again."
        if queue.redrive
        else "A worker creates it at its start, or does not start where it may not.",
        _create_dead_letter_queue(letters.name, queue),
    )


def _short_retention(queue: QueueFacts, letters: QueueFacts) -> Iterator[Finding]:
    # In a FIFO queue, or as a copy (by the option), a dead letter's age starts anew.
    if queue.fifo or not queue.redrive or letters.retention > queue.retention:
        yield from _hasty(letters)
        return
    if letters.retention >= RETENTION_SECONDS:
        return
    yield Finding(
        Severity.ERROR if letters.retention < queue.retention else Severity.WARNING,
        f"dead-letter queue {letters.name!r}",
        f"it keeps a message for {duration_text(letters.retention)}, and its source {queue.name!r} for "
        f"{duration_text(queue.retention)}",
        "The age of a message that SQS moves counts from its first sending: after a long time in the source "
        "it is deleted soon after its arrival, or at once.",
        set_attributes(letters.url, letters.location, MessageRetentionPeriod=RETENTION_SECONDS),
    )


def _hasty(letters: QueueFacts) -> Iterator[Finding]:
    if letters.retention < DEFAULT_RETENTION_SECONDS:
        yield Finding(
            Severity.WARNING,
            f"dead-letter queue {letters.name!r}",
            f"it keeps a message for {duration_text(letters.retention)}",
            "What failed for good is gone before anybody is back from a long weekend.",
            set_attributes(letters.url, letters.location, MessageRetentionPeriod=RETENTION_SECONDS),
        )


def _unfit(queue: QueueFacts, letters: QueueFacts, facts: Facts) -> Iterator[Finding]:
    if letters.redrive:
        yield Finding(
            Severity.WARNING,
            f"dead-letter queue {letters.name!r}",
            f"it has a redrive policy of its own, to {letters.redrive.name!r} after "
            f"{letters.redrive.max_receive_count} receives",
            "Looking at dead letters may move them there.",
            set_attributes(letters.url, letters.location, RedrivePolicy=""),
        )
    if queue.fifo and not letters.fifo and not queue.redrive:
        yield Finding(
            Severity.NOTE,
            f"dead-letter queue {letters.name!r}",
            f"it is a standard queue, and its source {queue.name!r} is FIFO",
            "Dead letters lose their order, and SQS can name no such queue in a redrive policy.",
            option("dead_letter_queue", f"{letters.name}.fifo", queue.name),
        )
    if any(map(letters.is_same, facts.queues)):
        yield Finding(
            Severity.WARNING,
            f"dead-letter queue {letters.name!r}",
            "it is one of the app's own queues",
            "Workers that consume it run messages again that have failed for good.",
            "leave it out of task_queues and task_routes, unless a worker of its own is meant to consume it",
        )


def check_in_flight(facts: Facts) -> Iterator[Finding]:
    """Queues near SQS's quota of messages in flight."""
    for queue in facts.queues:
        in_flight = int((queue.attributes or {}).get(HIDDEN, 0))
        if in_flight >= MANY_IN_FLIGHT_MESSAGES:
            yield Finding(
                Severity.WARNING,
                f"queue {queue.name!r}",
                f"{in_flight:,} of its messages are in flight, of about {IN_FLIGHT_MESSAGES:,} at the most",
                "Beyond that SQS hands out none, without an error, and tasks wait. Workers hold these "
                "messages, or have hidden them for a retry or an ETA.",
                f"{facts.command} status shows how many each worker holds and hides. Shorten the delays, "
                "give tasks that wait long a queue of their own, or ask AWS for a higher quota",
            )


def check_queue_delays(facts: Facts) -> Iterator[Finding]:
    """Queues that delay every message."""
    for queue in facts.queues:
        delay = int((queue.attributes or {}).get("DelaySeconds", 0))
        if 0 < delay <= DELAY_SECONDS:
            yield Finding(
                Severity.NOTE,
                f"queue {queue.name!r}",
                f"its DelaySeconds is {delay}",
                f"Each task starts {duration_text(delay)} after it is sent, or later.",
                set_attributes(queue.url, queue.location, DelaySeconds=0),
            )
