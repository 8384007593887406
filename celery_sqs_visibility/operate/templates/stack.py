"""What a template makes: queues, alarms on them, and the policies of those who use them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from celery_sqs_visibility.policy.provisioning import QueuePlan
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES, MANY_IN_FLIGHT_MESSAGES

NAMESPACE: Final = "AWS/SQS"

PERIOD_SECONDS: Final = 300

#: Periods without anybody who works: a fleet that scales from zero, or is deployed, takes less.
IDLE_PERIODS: Final = 3

WAITING: Final = "ApproximateNumberOfMessagesVisible"
IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"
DELETED: Final = "NumberOfMessagesDeleted"


@dataclass(frozen=True, slots=True)
class Stack:
    """The contents of a template.

    Attributes:
        plans: the queues, each after its dead-letter queue.
        policies: policy documents by role.
        arns: SQS's names of queues by the ARNs that the documents have of them.
    """

    plans: Sequence[QueuePlan]
    policies: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    arns: Mapping[str, str] = field(default_factory=dict)


def referring(document: Any, references: Mapping[str, Any]) -> Any:
    """A copy of a document whose strings are replaced by those references."""
    if isinstance(document, dict):
        return {name: referring(value, references) for name, value in document.items()}
    if isinstance(document, list):
        return [referring(value, references) for value in document]
    return references.get(document, document) if isinstance(document, str) else document


def typed(name: str, value: str) -> Any:
    """The value of a queue's attribute: SQS takes texts, templates have types."""
    if name in {"RedrivePolicy", "RedriveAllowPolicy", "Policy"}:  # JSON at SQS
        return json.loads(value)
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    return int(value) if value.isdigit() and name != "KmsMasterKeyId" else value


def labels(plans: Sequence[QueuePlan], label_of: Callable[[str], str]) -> dict[str, str]:
    """Labels of queues in a template, by their names at SQS, with numbers behind repeated ones."""
    seen, found = Counter[str](), {}
    for plan in plans:
        label = label_of(plan.sqs_name)
        seen[label] += 1
        found[plan.sqs_name] = label if seen[label] == 1 else f"{label}{seen[label]}"
    return found


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm on one queue.

    Attributes:
        kind: names it, behind the queue's name.
        description: what happened, and what helps.
        metrics: metric and statistic by the id that the expression has for it.
        threshold: the value from which on a period counts.
        expression: of the metrics; empty where the only one is compared itself.
        periods: how many in a row raise it.
        missing: what a period without values does.
    """

    kind: str
    description: str
    metrics: Mapping[str, tuple[str, str]]
    threshold: int = 1
    expression: str = ""
    periods: int = 1
    missing: str = "notBreaching"


def alarms_of(plan: QueuePlan) -> list[Alarm]:
    """The alarms on a planned queue: of a dead-letter queue one, of another two.

    SQS's own metrics allow them, and healthy long tasks do not raise them.
    """
    return [_dead_letters(plan)] if plan.holds_letters else [_many_in_flight(plan), _not_consumed(plan)]


def _dead_letters(plan: QueuePlan) -> Alarm:
    return Alarm(
        "dead-letters",
        f"{plan.sqs_name} has messages of tasks that failed for good: celery sqs dead-letters list.",
        {"letters": (WAITING, "Maximum")},
        missing="ignore",  # SQS may end the metrics of a queue that nobody uses, and the letters are there
    )


def _many_in_flight(plan: QueuePlan) -> Alarm:
    return Alarm(
        "in-flight",
        f"{plan.sqs_name} nears {IN_FLIGHT_MESSAGES} messages in flight, beyond which workers get no more. "
        "Shorten retry delays, add a queue, or ask AWS for more.",
        {"held": (IN_FLIGHT, "Maximum")},
        threshold=MANY_IN_FLIGHT_MESSAGES,
    )


def _not_consumed(plan: QueuePlan) -> Alarm:
    """Short tasks are seen by deletions, long ones by what is in flight."""
    minutes = IDLE_PERIODS * PERIOD_SECONDS // 60
    return Alarm(
        "not-consumed",
        f"For {minutes} minutes messages waited in {plan.sqs_name}, none was in flight, and none deleted: "
        "no worker consumes the queue, or it is paused.",
        {"waiting": (WAITING, "Minimum"), "held": (IN_FLIGHT, "Maximum"), "deleted": (DELETED, "Sum")},
        expression="IF(waiting > 0 AND held == 0 AND FILL(deleted, 0) == 0, 1, 0)",
        periods=IDLE_PERIODS,
    )
