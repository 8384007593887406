"""Where the dead letters of a queue are, and where they go back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from celery_sqs_visibility.aws.queue_counts import HIDDEN, VISIBLE
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import parse_redrive_policy
from celery_sqs_visibility.delivery.receive.decoder import SOURCE_ARN
from celery_sqs_visibility.operate.dead_letters.letter import Letter
from celery_sqs_visibility.operate.found_queues import dead_letter_queue, look_at
from celery_sqs_visibility.operate.invocation import CommandError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.queue_attributes import REDRIVE_POLICY
from celery_sqs_visibility.transport.broker_context import BrokerContext

NONE: Final = (
    "no redrive policy, and no option dead_letter_queue. Name the queue that has its dead letters by "
    "--dead-letter-queue"
)


@dataclass(frozen=True)
class Place:
    """A queue and its dead-letter queue.

    Attributes:
        source: the queue that messages were given up in.
        letters: the dead-letter queue.
        is_of_policy: whether the source's redrive policy names that.
    """

    context: BrokerContext
    source: Queue
    letters: Queue
    is_of_policy: bool

    @property
    def source_names(self) -> set[str]:
        """Celery's and SQS's."""
        return {self.source.name, self.source.sqs_name}

    def target_of(self, letter: Letter) -> Queue:
        """The queue that a letter was given up in, as far as it says.

        Raises:
            SQSError: there is no such queue, or SQS does not answer.
        """
        if letter.source is None or letter.source in self.source_names:
            return self.source
        if not letter.is_copy and (arn := letter.system.get(SOURCE_ARN)):
            return self.context.queues.by_arn(arn)
        return self.context.queues.find(letter.source)

    @property
    def moves_on(self) -> bool:
        """Whether the dead-letter queue has a redrive policy of its own; no, where we may not ask."""
        return parse_redrive_policy(self._before) is not None

    @property
    def number_before(self) -> int:
        """Dead letters, hidden ones included, before a look at them; 0, where we may not ask."""
        return sum(int(self._before.get(kind, 0)) for kind in (VISIBLE, HIDDEN))

    @cached_property
    def _before(self) -> Mapping[str, str]:
        """Attributes of the dead-letter queue before a look at its messages."""
        return look_at(lambda: self.letters, [REDRIVE_POLICY, VISIBLE, HIDDEN]).attributes or {}


def find_place(context: BrokerContext, queue: str, letters: str | None) -> Place:
    """The place of a queue's dead letters; `letters` is a dead-letter queue that is named.

    Raises:
        CommandError: the queue has no dead-letter queue.
        SQSError: one of the two is not there, or SQS does not tell.
    """
    source = context.queues.find(queue)
    found = context.queues.find(letters) if letters else dead_letter_queue(context, source)
    if found is None:
        raise CommandError(f"queue {queue!r} has no dead-letter queue: {NONE}")
    policy = context.redrive.get(source, SYSTEM_CLOCK.monotonic())
    return Place(context, source, found, policy is not None and policy.name == found.sqs_name)
