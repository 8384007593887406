"""kombu's `backoff_policy` for tasks with Celery's own behaviour; a `VisibilityTask` has it among its delays.

kombu applies it to a message that is rejected, and leaves that in its queue, also where the policy has no
delay for the attempt (kombu/transport/SQS/__init__.py: `QoS.reject`, `Channel.basic_reject`). Celery rejects
the message of a failed task where `acks_on_failure_or_timeout` is off, and of one that raises `Reject`.
"""

from __future__ import annotations

from typing import Any

from celery.exceptions import Reject

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.settlements import Hide, Lapse, Settlement
from celery_sqs_visibility.policy.retry_delays import whole_seconds
from celery_sqs_visibility.task.retries import RetryDecisions


def after_rejection(delivery: Delivery, task: Any) -> Settlement | None:
    """How the rejected message comes back; `None` where no policy names its task. Any thread."""
    policy = delivery.holder.options.backoff_policy(delivery.queue.name, task.name)
    if policy is None or isinstance(task, RetryDecisions):
        return None
    delay = policy.delay(delivery.facts.receive_count - delivery.parks - 1, Reject())
    return Lapse() if delay is None else Hide(whole_seconds(delay))
