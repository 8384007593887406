"""Makes the queues that are missing, and tells how those that are there differ from the plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery_sqs_visibility.aws.port import SQS
from celery_sqs_visibility.aws.queues import Queue, when_known
from celery_sqs_visibility.aws.redrive import parse_redrive_policy
from celery_sqs_visibility.errors import QueueDoesNotExistError
from celery_sqs_visibility.operate.parallel import for_each
from celery_sqs_visibility.operate.provisioning import QueuePlan
from celery_sqs_visibility.policy.queue_attributes import ARN, FIFO, REDRIVE_POLICY, redrive_policy


@dataclass
class Finding:
    """What is, or was made, of a planned queue.

    Attributes:
        queue: SQS's name.
        state: missing, created, as planned, different or updated.
        attributes: those that were set, or would be.
        now: the present values of those that differ.
    """

    queue: str
    state: str
    attributes: dict[str, str] = field(default_factory=dict)
    now: dict[str, str | None] = field(default_factory=dict)


class Creation:
    """Compares plans with the queues that there are, and acts on it. Requests as it goes; one thread.

    Args:
        sqs: where the queues are.
        dry_run: only tells.
        update: also sets what differs in queues that are there.
    """

    def __init__(self, sqs: SQS, *, dry_run: bool = False, update: bool = False) -> None:
        self._sqs = sqs
        self._dry_run = dry_run
        self._update = update
        self._arns: dict[str, str] = {}

    def run(self, plans: Sequence[QueuePlan]) -> list[Finding]:
        """See to the queues, each after its dead-letter queue.

        Raises:
            SQSError: SQS does not answer, or refuses.
        """
        names = [plan.sqs_name for plan in plans]
        present = dict(zip(names, for_each(names, self._present), strict=True))
        wanted = _without_other_letters(plans, present)
        return [self._see_to(plan, present[plan.sqs_name]) for plan in wanted]

    def _present(self, name: str) -> dict[str, str] | None:
        try:
            url = self._sqs.queue_url(name)
        except QueueDoesNotExistError:
            return None
        return {**when_known(partial(self._sqs.queue_attributes, url, ["All"])), "url": url}

    def _see_to(self, plan: QueuePlan, present: Mapping[str, str] | None) -> Finding:
        if present is None:
            return self._create(plan)
        self._arns[plan.sqs_name] = present[ARN]
        wanted = {**plan.attributes, **self._redrive(plan, present)}
        differing = {n: value for n, value in wanted.items() if not same(n, present.get(n), value)}
        now = {name: present.get(name) for name in differing}
        if not differing:
            return Finding(plan.sqs_name, "as planned")
        if not self._update or self._dry_run:
            return Finding(plan.sqs_name, "different", differing, now)
        self._sqs.set_queue_attributes(present["url"], {n: v for n, v in differing.items() if n != FIFO})
        return Finding(plan.sqs_name, "updated", differing, now)

    def _create(self, plan: QueuePlan) -> Finding:
        attributes = {**plan.attributes, **self._redrive(plan, {})}
        if self._dry_run:
            return Finding(plan.sqs_name, "missing", attributes)
        url = self._sqs.create_queue(plan.sqs_name, attributes, plan.tags)
        self._arns[plan.sqs_name] = when_known(Queue(plan.name, url, self._sqs).arn)
        return Finding(plan.sqs_name, "created", attributes)

    def _redrive(self, plan: QueuePlan, present: Mapping[str, str]) -> dict[str, str]:
        """The redrive policy; that of a queue keeps its dead-letter queue, and a larger count."""
        if plan.dead_letters is None or plan.max_receive_count is None:
            return {}
        arn, receives = self._arns.get(plan.dead_letters, plan.dead_letters), plan.max_receive_count
        if (policy := parse_redrive_policy(present)) is not None:
            arn, receives = policy.dead_letter_arn, max(receives, policy.max_receive_count)
        return {REDRIVE_POLICY: json.dumps(redrive_policy(arn, receives))}


def _without_other_letters(
    plans: Iterable[QueuePlan], present: Mapping[str, Mapping[str, str] | None]
) -> list[QueuePlan]:
    """The plans but for dead-letter queues that nobody needs: their queues have others."""
    plans = list(plans)
    needed = {plan.dead_letters for plan in plans if not _has_others(plan, present[plan.sqs_name] or {})}
    letters = {plan.dead_letters for plan in plans}
    return [plan for plan in plans if plan.sqs_name not in letters - needed]


def _has_others(plan: QueuePlan, present: Mapping[str, str]) -> bool:
    policy = parse_redrive_policy(present)
    return policy is not None and policy.name != plan.dead_letters


def same(name: str, present: str | None, wanted: str) -> bool:
    """Whether an attribute has a value, however SQS writes it."""
    if present is None or present == wanted:
        return present == wanted
    if name == REDRIVE_POLICY:
        return parse_redrive_policy({name: present}) == parse_redrive_policy({name: wanted})
    return bool(_value(present) == _value(wanted))


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in {"true", "false"} else text)
    except ValueError:
        return text
