"""Plans of an app's queues at SQS: attributes, dead-letter queues, redrive policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.queue_names import (
    FIFO_SUFFIX,
    REDRIVE_POLICY,
    RETENTION,
    creation_attributes,
    why_illegal,
)
from celery_sqs_visibility.policy.quotas import RETENTION_SECONDS

#: Receives beyond the attempts: for releases in deploys, and for a wait for an ETA.
SPARE_RECEIVES: Final = 3

#: Celery's default of `max_retries` (celery/app/task.py).
DEFAULT_MAX_RETRIES: Final = 3

#: The largest maxReceiveCount (API_SetQueueAttributes).
MAX_RECEIVES: Final = 1000

#: Suffix of the name of a dead-letter queue, before `.fifo`.
DEAD_LETTER_SUFFIX: Final = "-dead"

#: Attributes that a dead-letter queue gets from `sqs-creation-attributes`.
ENCRYPTION: Final = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue as it should be.

    Attributes:
        name: Celery's name; for a dead-letter queue, SQS's without the prefix.
        sqs_name: SQS's name.
        attributes: for CreateQueue, without the redrive policy.
        dead_letters: SQS's name of its planned dead-letter queue.
        max_receive_count: of its planned redrive policy.
        tags: the queue's.
        holds_letters: whether it is a dead-letter queue.
    """

    name: str
    sqs_name: str
    attributes: Mapping[str, str]
    dead_letters: str | None = None
    max_receive_count: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    holds_letters: bool = False


def required_max_receive_count(max_retries: Iterable[int | None]) -> int:
    """The smallest `maxReceiveCount` that allows every task of a queue all its attempts.

    Args:
        max_retries: of the queue's tasks; `None` leaves the limit to the queue.
    """
    limits = [limit for limit in max_retries if limit is not None]
    attempts = max(limits, default=DEFAULT_MAX_RETRIES) + 1
    return min(attempts + SPARE_RECEIVES, MAX_RECEIVES)


def dead_letter_name(queue: str) -> str:
    """Name the dead-letter queue of a queue."""
    return _alike(queue.removesuffix(FIFO_SUFFIX) + DEAD_LETTER_SUFFIX, queue)


def _alike(letters: str, queue: str) -> str:
    """The name with the queue's own suffix: SQS redrives FIFO to FIFO, and standard to standard."""
    return letters.removesuffix(FIFO_SUFFIX) + (FIFO_SUFFIX if queue.endswith(FIFO_SUFFIX) else "")


def dead_letter_attributes(name: str) -> dict[str, str]:
    """Attributes of a new dead-letter queue, which keeps a message as long as SQS allows."""
    return creation_attributes(name, {RETENTION: str(RETENTION_SECONDS)})


def plan_queues(
    queues: Sequence[str], options: Options, max_retries: Mapping[str, Iterable[int | None]]
) -> list[QueuePlan]:
    """Plan the queues of these names, each after its dead-letter queue.

    Args:
        queues: Celery's names.
        options: the transport's.
        max_retries: of the tasks of each queue.
    """
    plans: dict[str, QueuePlan] = {}
    for name in queues:
        if _is_for_letters(name, options):
            of_one = [_letters(name, options)]
        else:
            of_one = _with_letters(name, options, required_max_receive_count(max_retries.get(name, ())))
        for plan in of_one:
            plans.setdefault(plan.sqs_name, plan)
    return list(plans.values())


def why_impossible(plans: Iterable[QueuePlan]) -> str | None:
    """Why SQS would refuse one of these queues, with the remedy; `None` if it accepts all."""
    plans = list(plans)
    of_letters = {plan.dead_letters for plan in plans}
    for plan in plans:
        if reason := why_illegal(plan.sqs_name):
            other = "; or the option dead_letter_queue names another" if plan.sqs_name in of_letters else ""
            return f"SQS can have no queue {plan.sqs_name!r}: {reason}{other}"
    return None


def _with_letters(name: str, options: Options, max_receive_count: int) -> list[QueuePlan]:
    given = options.sqs_creation_attributes
    timeout = str(options.for_queue(name).visibility_timeout)
    sqs_name = options.name_at_sqs(name)
    attributes = creation_attributes(sqs_name, {"VisibilityTimeout": timeout, **given})
    plan = QueuePlan(name, sqs_name, attributes, tags=options.queue_tags)
    if REDRIVE_POLICY in given:  # the user's own
        return [plan]
    if of_option := options.for_queue(name).dead_letter_queue:
        letters = _letters(_alike(of_option, plan.sqs_name), options)
    else:
        letters = replace(_letters(dead_letter_name(name), options), sqs_name=dead_letter_name(plan.sqs_name))
    return [letters, replace(plan, dead_letters=letters.sqs_name, max_receive_count=max_receive_count)]


def _letters(name: str, options: Options) -> QueuePlan:
    given = options.sqs_creation_attributes
    encryption = {key: given[key] for key in ENCRYPTION if key in given}
    attributes = {**dead_letter_attributes(name), **encryption}
    sqs_name = options.name_at_sqs(name)
    return QueuePlan(name, sqs_name, attributes, tags=options.queue_tags, holds_letters=True)


def _is_for_letters(name: str, options: Options) -> bool:
    given = options.dead_letter_queue, options.for_queue(name).dead_letter_queue
    named = name in {_alike(letters, name) for letters in given if letters}
    return named or name.removesuffix(FIFO_SUFFIX).endswith(DEAD_LETTER_SUFFIX)
