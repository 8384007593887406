"""CloudWatch's alarms on a queue that SQS's own metrics allow, and that healthy long tasks do not raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    """The alarms on a planned queue: of a dead-letter queue one, of another two."""
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
