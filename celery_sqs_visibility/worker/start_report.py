"""The line that a worker writes of each of its queues at its start: where it is, and where dead letters go.

Celery's banner lists Celery's names of the queues, and asks nobody for SQS's (celery/app/amqp.py:
`Queues.format`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery.utils.log import get_logger

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import AccessDeniedError, SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.options import Options, beyond_horizon

logger = get_logger(__name__)

CLAMPED: Final = (
    "%s is longer than SQS hides a message, and 12 hours are used: a killed worker's message comes back "
    "after these. Set minutes; the heartbeat extends it for as long as a task runs"
)

#: The one right without which a worker starts all the same; a lack of others shows later, or ends it.
READ_POLICY: Final = "sqs:GetQueueAttributes"


def warn_of_clamped(given: Mapping[str, Any]) -> None:
    """Log one line where a visibility timeout, of the transport options, was longer than SQS allows."""
    if beyond := beyond_horizon(given):
        told = ", ".join(f"{option}={value}" for option, value in beyond.items())
        logger.warning(CLAMPED, told)


def report(queue: Queue, redrive: RedriveBook, options: Options) -> None:
    """Log one line about a queue that was found; its facts are the record's `sqs`. No request is made."""
    facts = describe(queue, redrive, options)
    name = repr(facts["sqs_name"])
    if queue.name != queue.sqs_name:
        name += f" (Celery's {queue.name!r})"
    log_safely(
        logger.info,
        "queue %s %s at %s (%s): %s; visibility timeout %d s%s",
        name,
        queue.origin,
        queue.url,
        ", ".join(f"{key} {facts[key]}" for key in ("region", "account") if facts[key]),
        _dead_letters(facts, redrive.why_unknown(queue)),
        facts["visibility_timeout"],
        _turns(facts, options),
        extra={"sqs": facts},
    )


def describe(queue: Queue, redrive: RedriveBook, options: Options) -> dict[str, Any]:
    """Return what is known of a queue; `None` is "unknown" or "has none". No request is made."""
    policy = redrive.peek(queue)
    # Of a policy's queue only the name: its URL would be a request.
    plain = redrive.dead_letter_queue(queue) if policy is None else None
    denied = isinstance(redrive.why_unknown(queue), AccessDeniedError)
    own = options.for_queue(queue.name)
    return {
        "queue": queue.name,
        "sqs_name": queue.sqs_name,
        "url": queue.url,
        "region": _region(queue),
        "account": queue.account,
        "origin": queue.origin,
        "dead_letter_queue": policy.name if policy else plain and plain.sqs_name,
        "max_receive_count": policy.max_receive_count if policy else None,
        "visibility_timeout": own.visibility_timeout,
        "weight": own.weight,
        "max_running": own.max_running,
        "not_allowed": [READ_POLICY] if denied else [],
    }


def _turns(facts: dict[str, Any], options: Options) -> str:
    """How the queue shares the worker with others, where an option says so."""
    order, most = options.queue_order, facts["max_running"]
    said = {
        "strict": f"place {options.for_queue(facts['queue']).place + 1}",
        "weighted": f"weight {facts['weight']}",
    }
    turns = f"; {order} order, {said[order]}" if order in said else ""
    return turns + (f"; {most} at once at the most" if most else "")


def _region(queue: Queue) -> str | None:
    try:
        return queue.sqs.location().region
    except SQSError:  # the settings have gone bad since the queue was found
        return None


def _dead_letters(facts: dict[str, Any], error: SQSError | None) -> str:
    target, receives = facts["dead_letter_queue"], facts["max_receive_count"]
    if receives is not None:
        return f"dead letters go to {target!r} after {receives} receive{'' if receives == 1 else 's'}"
    policy = "no redrive policy"
    if error is not None:
        reason = f"{READ_POLICY} is not allowed" if facts["not_allowed"] else str(error).rstrip(".")
        policy = f"redrive policy not known, since {reason}"
    if target is not None:
        return f"{policy}; dead letters go to {target!r}, by the option dead_letter_queue"
    return policy if error is not None else f"{policy} and no dead_letter_queue"
