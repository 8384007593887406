"""Messages that wait to be sent in batches: which go together, in what order, and what becomes of failures.

Decisions only: no lock, no thread, no request, and the time is an argument (monotonic seconds).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    CredentialsRefusedError,
    RequestRefusedError,
    SQSError,
)
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.message_attributes import message_bytes
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

#: Seconds that a batch waits to be full. Who publishes slowly, or waits for a result, waits no longer.
WINDOW = 1.0

#: Seconds without a success after which what fails is given up.
PATIENCE = 30.0

#: How often credentials are looked for anew; rotated ones are found the first time.
MOST_REFUSALS = 3


@dataclass(slots=True, eq=False)
class Entry:
    """One message on its way.

    Attributes:
        task_id: what the user knows it by.
        size: in bytes, as SQS counts them.
        since: when it was published.
        company: how many entries its batch may have.
        failures: how often it was tried in vain.
        trouble_since: when the trouble began in which it failed first.
    """

    queue: Queue
    message: OutgoingMessage
    task_id: str | None
    size: int
    since: float
    company: int = BATCH_ENTRIES
    failures: int = 0
    trouble_since: float = 0.0

    @property
    def group(self) -> str | None:
        """Whose order counts. The groups of standard queues are for fairness and have none."""
        return self.message.group_id if self.queue.fifo else None


@dataclass(slots=True, eq=False)
class Lane:
    """What goes to one queue.

    Attributes:
        ready: may be sent. Of each group in a FIFO queue at most one entry, so that no message of a group is
            overtaken by a later one: SQS may refuse one of a batch, and take those after it.
        behind: by group, what waits until the message before it has been sent, or given up. A group without
            anything under way is not here.
        trouble_since: when it first failed after the last success; `None`: it works.
    """

    ready: deque[Entry] = field(default_factory=deque)
    behind: dict[str, deque[Entry]] = field(default_factory=dict)
    kept_back: int = 0
    trouble_since: float | None = None

    def add(self, entry: Entry) -> None:
        """Last in line."""
        group = entry.group
        if group is None:
            self.ready.append(entry)
        elif group in self.behind:
            self.behind[group].append(entry)
            self.kept_back += 1
        else:
            self.behind[group] = deque()
            self.ready.append(entry)

    def over(self, entry: Entry) -> None:
        """The entry was sent or given up: it is the next one's turn."""
        group = entry.group
        if group is None:
            return
        if waiting := self.behind[group]:
            self.ready.append(waiting.popleft())
            self.kept_back -= 1
        else:
            del self.behind[group]

    def first_batch(self) -> tuple[int, bool]:
        """How many of those that are ready go into the next request, and whether no more can join them."""
        capacity, company = MESSAGE_BYTES, BATCH_ENTRIES
        for count, entry in enumerate(self.ready):
            capacity -= entry.size
            company = min(company, entry.company)
            if capacity < 0 or count == company:
                return count, True
        # Where entries wait for others of their group, waiting for company would keep them longer.
        return len(self.ready), len(self.ready) == company or self.kept_back > 0


class PendingMessages:
    """What was published and not yet sent.

    Attributes:
        size: bytes of what waits or is under way.
        failures: task id and reason of what was given up.
        accepted: entries that were ever added.
    """

    def __init__(self) -> None:
        self.size = 0
        self.accepted = 0
        self.failures: list[tuple[str | None, Exception]] = []
        self._entries: dict[Entry, None] = {}  # in the order of their publication
        self._lanes: dict[Queue, Lane] = {}
        self._later: list[tuple[float, int, Entry]] = []  # heap: (not before, tie-break, failed entry)
        self._ties = itertools.count()

    @property
    def count(self) -> int:
        """How many wait or are under way."""
        return len(self._entries)

    @property
    def waiting(self) -> list[str | None]:
        """Their task ids, the first published first."""
        return [entry.task_id for entry in self._entries]

    def add(self, queue: Queue, message: OutgoingMessage, task_id: str | None, now: float) -> bool:
        """Have it sent; whether there is now a batch that waits for nothing."""
        size = message_bytes(message.body, message.attributes)
        self.accepted += 1
        if size > MESSAGE_BYTES:
            told = f"The message has {size:,} bytes with its attributes, and SQS takes {MESSAGE_BYTES:,}"
            self.failures.append((task_id, RequestRefusedError(told, code="MessageTooLong")))
            return False
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane()
        entry = Entry(queue, message, task_id, size, now)
        lane.add(entry)
        self._entries[entry] = None
        self.size += size
        return lane.first_batch()[1]

    def take(self, now: float, *, hurried: bool = False) -> list[Entry]:
        """The next batch to send; empty if none is full, nor has waited long enough.

        Args:
            now: the time.
            hurried: nothing waits for company.
        """
        self._bring_back(now)
        for queue, lane in self._lanes.items():
            count, full = lane.first_batch()
            if count and (full or hurried or now >= lane.ready[0].since + WINDOW):
                # Last in line from now on, so that one busy queue does not keep the others waiting.
                self._lanes[queue] = self._lanes.pop(queue)
                return [lane.ready.popleft() for _ in range(count)]
        return []

    def has_more(self, *, hurried: bool) -> bool:
        """Whether another batch may be taken right away."""
        return any(lane.ready and (hurried or lane.first_batch()[1]) for lane in self._lanes.values())

    def due(self) -> float | None:
        """When there may be something to take, if nothing is added; `None`: never."""
        instants = [lane.ready[0].since + WINDOW for lane in self._lanes.values() if lane.ready]
        instants += [not_before for not_before, _, _ in self._later[:1]]
        return min(instants, default=None)

    def conclude(self, batch: list[Entry], outcome: BatchResult | SQSError, now: float) -> None:
        """A batch was sent: forget what SQS has, keep what is tried again, note what is given up."""
        if isinstance(outcome, RequestRefusedError) and len(batch) > 1:
            self._divide(batch)
            return
        if isinstance(outcome, SQSError):
            outcome = BatchResult(dict.fromkeys(range(len(batch)), outcome))
        errors = outcome.failed
        lane = self._lanes[batch[0].queue]
        if len(errors) < len(batch):
            lane.trouble_since = None
        self._again_or_never(lane, {batch[i]: error for i, error in errors.items()}, now)
        for i, entry in enumerate(batch):
            if i not in errors:
                self._over(lane, entry)

    def _again_or_never(self, lane: Lane, errors: Mapping[Entry, SQSError], now: float) -> None:
        # One pause for all, so that they meet again in one batch.
        not_before = now + pause(1 + max((entry.failures for entry in errors), default=0))
        for entry, error in errors.items():
            if isinstance(error, PASSING_ERRORS):
                lane.trouble_since = now if lane.trouble_since is None else lane.trouble_since
            entry.failures += 1
            if entry.failures == 1:
                entry.trouble_since = now if lane.trouble_since is None else lane.trouble_since
            if _may_pass(entry, error) and not_before < entry.trouble_since + PATIENCE:
                heapq.heappush(self._later, (not_before, next(self._ties), entry))
            else:
                self.failures.append((entry.task_id, error))
                self._over(lane, entry)

    def _divide(self, batch: list[Entry]) -> None:
        """SQS refused a whole request: send its halves, so that in the end only those fail that are wrong."""
        ready = self._lanes[batch[0].queue].ready
        for entry in reversed(batch):
            entry.company = len(batch) // 2
            ready.appendleft(entry)

    def _bring_back(self, now: float) -> None:
        returning = []
        while self._later and self._later[0][0] <= now:
            returning.append(heapq.heappop(self._later)[2])
        for entry in reversed(returning):
            self._lanes[entry.queue].ready.appendleft(entry)

    def _over(self, lane: Lane, entry: Entry) -> None:
        lane.over(entry)
        del self._entries[entry]
        self.size -= entry.size


def _may_pass(entry: Entry, error: SQSError) -> bool:
    if isinstance(error, CredentialsRefusedError):
        return entry.failures < MOST_REFUSALS
    return isinstance(error, PASSING_ERRORS)
