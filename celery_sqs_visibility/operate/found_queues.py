"""What SQS lets a command see of a queue: attributes, dead-letter queue. Creates nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A queue as far as it could be found; `error` is why not, or why its attributes are not known."""

    queue: Queue | None = None
    attributes: Mapping[str, str] | None = None
    error: SQSError | None = None


def look_at(find: Callable[[], Queue], attributes: Sequence[str] = ("All",)) -> FoundQueue:
    """Find a queue and ask for its attributes. Any thread; raises nothing that SQS says."""
    queue = None
    try:
        queue = find()
        return FoundQueue(queue, queue.sqs.queue_attributes(queue.url, attributes))
    except SQSError as error:
        return FoundQueue(queue, error=error)


def dead_letter_queue(broker: BrokerContext, queue: Queue) -> Queue | None:
    """The queue that the redrive policy names, or the option `dead_letter_queue`; `None` if neither does.

    The policy is asked for as seldom as workers do.

    Raises:
        SQSError: that queue could not be found, or the policy is not known and there is no option.
    """
    if broker.redrive.get(queue, SYSTEM_CLOCK.monotonic()) is not None:
        return broker.redrive.dead_letter_queue(queue)
    name = broker.options.for_queue(queue.name).dead_letter_queue
    if name is None and (error := broker.redrive.why_unknown(queue)) is not None:
        raise error
    letters = broker.queues.find(name) if name else None  # not the book's, which would create it
    return None if letters is None or letters.url == queue.url else letters
