"""Messages waiting to be sent in batches: which share a request, in what order, and what is retried."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    CredentialsRefusedError,
    RequestRefusedError,
    SQSError,
)
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.message_limits import message_bytes, too_large
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

#: A batch that is not full waits this long for more messages, unless everything is being flushed.
LINGER_SECONDS = 1.0

#: A message is given up once the outage of its queue has lasted this long.
GIVE_UP_SECONDS: Final = 30.0

#: How often credentials are looked up again after a refusal. Rotated ones are found the first time.
MAX_CREDENTIAL_LOOKUPS: Final = 3

#: Identifies a message to its publisher: the id of a task, for example.
Tag = TypeVar("Tag")


@dataclass(slots=True, eq=False)
class PendingMessage(Generic[Tag]):
    """One message on its way.

    Attributes:
        tag: identifies the message to its publisher.
        size: in bytes, as SQS counts them.
        since: when it was published.
        batch_limit: how many messages its batch may have.
        failures: how often sending it has failed.
        outage_since: when the outage began in which it first failed.
    """

    queue: Queue
    message: OutgoingMessage
    tag: Tag
    size: int
    since: float
    batch_limit: int = BATCH_ENTRIES
    failures: int = 0
    outage_since: float = 0.0

    @property
    def group(self) -> str | None:
        """The group whose order counts; `None` in a standard queue, where groups only serve fairness."""
        return self.message.group_id if self.queue.fifo else None


@dataclass(slots=True, eq=False)
class PendingBatches(Generic[Tag]):
    """The pending messages of one queue.

    Attributes:
        ready: messages that may be sent. In a FIFO queue at most one of each group, so that no message
            overtakes an earlier one of its group: SQS may refuse one message of a batch and accept those
            after it.
        waiting: by group, messages that wait until the one before them is sent or given up. A group is a key
            while one of its messages is ready or in flight.
    """

    ready: deque[PendingMessage[Tag]] = field(default_factory=deque)
    waiting: dict[str, deque[PendingMessage[Tag]]] = field(default_factory=dict)
    waiting_count: int = 0
    outage_since: float | None = None

    def add(self, pending: PendingMessage[Tag]) -> None:
        """Add a message, behind the others of its group."""
        group = pending.group
        if group in self.waiting:
            self.waiting[group].append(pending)
            self.waiting_count += 1
            return
        if group is not None:
            self.waiting[group] = deque()
        self.ready.append(pending)

    def remove(self, pending: PendingMessage[Tag]) -> None:
        """Forget a message that was sent or given up, and let the next one of its group be sent."""
        group = pending.group
        if group is None:
            return
        if waiting := self.waiting[group]:
            self.ready.append(waiting.popleft())
            self.waiting_count -= 1
        else:
            del self.waiting[group]

    def withdraw(self, gone: Callable[[Tag], bool]) -> list[PendingMessage[Tag]]:
        """Take out the messages whose tags are `gone`, except those in flight."""
        withdrawn = [pending for waiting in self.waiting.values() for pending in waiting if gone(pending.tag)]
        for group, waiting in self.waiting.items():
            self.waiting[group] = deque(pending for pending in waiting if not gone(pending.tag))
        self.waiting_count -= len(withdrawn)
        first = [pending for pending in self.ready if gone(pending.tag)]
        self.ready = deque(pending for pending in self.ready if not gone(pending.tag))
        for pending in first:
            self.remove(pending)
        return [*first, *withdrawn]

    def first_batch(self) -> tuple[int, bool]:
        """The number of ready messages that the next request takes, and whether it is full."""
        free_bytes, limit = MESSAGE_BYTES, BATCH_ENTRIES
        for count, pending in enumerate(self.ready):
            free_bytes -= pending.size
            limit = min(limit, pending.batch_limit)
            # One message is always sent: if it is larger than a batch, its payload goes to S3.
            if count and (free_bytes < 0 or count >= limit):
                return count, True
        # Lingering would delay the messages that wait for an earlier one of their group.
        return len(self.ready), len(self.ready) >= limit or self.waiting_count > 0


class PendingMessages(Generic[Tag]):
    """Messages that are published and not yet sent.

    Args:
        linger: seconds for which a batch that is not full waits for more; by default a second.
        give_up: how many seconds an outage may last before its messages are given up.

    Attributes:
        size: total bytes of the messages that wait or are in flight.
        failures: tag and reason of each message that was given up; the reader takes them out.
        accepted: number of messages ever added.
    """

    def __init__(self, linger: float | None = None, give_up: float = GIVE_UP_SECONDS) -> None:
        self.size = 0
        self.accepted = 0
        self.failures: list[tuple[Tag, SQSError]] = []
        self._linger = LINGER_SECONDS if linger is None else linger
        self._give_up = give_up
        self._messages: dict[PendingMessage[Tag], None] = {}  # in the order of their publication
        self._batches: dict[Queue, PendingBatches[Tag]] = {}
        # A heap: (not before, tie-break, message)
        self._retries: list[tuple[float, int, PendingMessage[Tag]]] = []
        self._ties = itertools.count()

    @property
    def count(self) -> int:
        """Number of messages that wait or are in flight."""
        return len(self._messages)

    @property
    def waiting(self) -> list[Tag]:
        """The tags of the messages that wait or are in flight, in the order of publication."""
        return [pending.tag for pending in self._messages]

    def add(
        self,
        queue: Queue,
        message: OutgoingMessage,
        tag: Tag,
        now: float,
        offloaded: Callable[[Queue, int], bool] = lambda _queue, _size: False,
    ) -> bool:
        """Add a message. Returns whether there is a full batch to send now.

        The payload of an `offloaded` message goes to S3, so the message takes a request of its own.
        """
        size = message_bytes(message.body, message.attributes)
        self.accepted += 1
        if size > MESSAGE_BYTES and not offloaded(queue, size):
            self.failures.append((tag, too_large(queue.name, size)))
            return False
        batches = self._batches.get(queue)
        if batches is None:
            batches = self._batches[queue] = PendingBatches()
        limit = 1 if offloaded(queue, size) else BATCH_ENTRIES
        pending = PendingMessage(queue, message, tag, size, now, limit)
        batches.add(pending)
        self._messages[pending] = None
        self.size += size
        # Fewer than ten small messages can't fill a batch, so they needn't be counted one by one.
        few = len(batches.ready) < limit and not batches.waiting_count
        return not (few and self.size <= MESSAGE_BYTES) and batches.first_batch()[1]

    def take(self, now: float, *, flushing: bool = False) -> list[PendingMessage[Tag]]:
        """Take the next batch to send; empty if none is full or has lingered long enough.

        With `flushing` nothing lingers.
        """
        self._bring_back(now)
        for queue, batches in self._batches.items():
            count, full = batches.first_batch()
            if count and (full or flushing or now >= batches.ready[0].since + self._linger):
                # The queue goes to the end, so that a busy one does not keep the others waiting.
                self._batches[queue] = self._batches.pop(queue)
                return [batches.ready.popleft() for _ in range(count)]
        return []

    def has_more(self, *, flushing: bool) -> bool:
        """Whether another batch can be taken at once."""
        return any(
            batches.ready and (flushing or batches.first_batch()[1]) for batches in self._batches.values()
        )

    def batches_ready(self) -> int:
        """About how many batches are ready, full or not."""
        return sum(math.ceil(len(batches.ready) / BATCH_ENTRIES) for batches in self._batches.values())

    def due(self) -> float | None:
        """The instant from which `take` returns a batch, unless more is added; `None` if none is pending."""
        instants = [each.ready[0].since + self._linger for each in self._batches.values() if each.ready]
        instants += [not_before for not_before, _, _ in self._retries[:1]]
        return min(instants, default=None)

    def withdraw(self, gone: Callable[[Tag], bool]) -> list[Tag]:
        """Take out the messages whose tags are `gone`, except those in flight. Returns their tags."""
        withdrawn = [each for batches in self._batches.values() for each in batches.withdraw(gone)]
        returning = [entry[2] for entry in self._retries if gone(entry[2].tag)]
        self._retries = [entry for entry in self._retries if not gone(entry[2].tag)]
        heapq.heapify(self._retries)
        for pending in returning:
            self._batches[pending.queue].remove(pending)
        for pending in (withdrawn := [*returning, *withdrawn]):
            del self._messages[pending]
            self.size -= pending.size
        return [pending.tag for pending in withdrawn]

    def conclude(self, batch: list[PendingMessage[Tag]], failed: Mapping[int, SQSError], now: float) -> None:
        """Note the result of a batch: forget what was sent, schedule retries, and record what is given up.

        Args:
            batch: the messages, as `take` returned them.
            failed: errors by position; the same error for all if the request failed as a whole.
            now: the time.
        """
        whole = failed.get(0)
        if (
            isinstance(whole, RequestRefusedError)
            and len(batch) > 1
            and all(failed.get(i) is whole for i in range(len(batch)))
        ):
            self._divide(batch)
            return
        batches = self._batches[batch[0].queue]
        if len(failed) < len(batch):
            batches.outage_since = None
        self._retry_or_give_up(batches, {batch[i]: error for i, error in failed.items()}, now)
        for i, pending in enumerate(batch):
            if i not in failed:
                self._remove(pending)

    def _retry_or_give_up(
        self, batches: PendingBatches[Tag], errors: Mapping[PendingMessage[Tag], SQSError], now: float
    ) -> None:
        # All get the same pause, so that they share a batch again.
        not_before = now + pause(1 + max((pending.failures for pending in errors), default=0))
        for pending, error in errors.items():
            _count_failure(pending, error, batches, now)
            if _may_pass(pending, error) and not_before < pending.outage_since + self._give_up:
                heapq.heappush(self._retries, (not_before, next(self._ties), pending))
            else:
                self.failures.append((pending.tag, error))
                self._remove(pending)

    def _divide(self, batch: list[PendingMessage[Tag]]) -> None:
        """Send a request that SQS refused as a whole in halves, until only the invalid messages fail."""
        for pending in batch:
            pending.batch_limit = len(batch) // 2
        self._batches[batch[0].queue].ready.extendleft(reversed(batch))

    def _bring_back(self, now: float) -> None:
        returning = []
        while self._retries and self._retries[0][0] <= now:
            returning.append(heapq.heappop(self._retries)[2])
        for pending in reversed(returning):
            self._batches[pending.queue].ready.appendleft(pending)

    def _remove(self, pending: PendingMessage[Tag]) -> None:
        self._batches[pending.queue].remove(pending)
        del self._messages[pending]
        self.size -= pending.size


def _count_failure(
    pending: PendingMessage[Tag], error: SQSError, batches: PendingBatches[Tag], now: float
) -> None:
    """Count a failure. If it is the message's first, note when the outage of its queue began."""
    if isinstance(error, PASSING_ERRORS) and batches.outage_since is None:
        batches.outage_since = now
    pending.failures += 1
    if pending.failures == 1:
        pending.outage_since = now if batches.outage_since is None else batches.outage_since


def _may_pass(pending: PendingMessage[Tag], error: SQSError) -> bool:
    if isinstance(error, CredentialsRefusedError):
        return pending.failures < MAX_CREDENTIAL_LOOKUPS
    return isinstance(error, PASSING_ERRORS)
