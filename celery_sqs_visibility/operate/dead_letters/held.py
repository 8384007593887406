"""The messages of a dead-letter queue that a command has received and hides from others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import OverLimitError, SQSError
from celery_sqs_visibility.operate.patience import patiently
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: For how long a message is hidden at a time; so long it stays hidden where the command is killed.
HOLD_SECONDS: Final = 120

#: A long poll, since a short one asks only some of SQS's servers.
WAIT_SECONDS: Final = 1

#: Receives in a row that bring only what is known, after which there is nothing new.
MOST_REPEATS: Final = 3

OPTIONS: Final = ReceiveOptions(HOLD_SECONDS, ("All",), ("All",))


class HeldMessages:
    """Receives messages and hides them until they are forgotten, or given back. The command's thread.

    Args:
        queue: the dead-letter queue.
        clock: the monotonic clock.
        stop: no more is received once it is set.

    Attributes:
        problem: why visibility was not changed, the last time that it was not.
        is_complete: whether SQS had no more to give.
    """

    def __init__(self, queue: Queue, clock: Clock, stop: threading.Event) -> None:
        self._queue = queue
        self._clock = clock
        self._stop = stop
        self._handles: dict[str, tuple[str, float]] = {}  # message id to newest handle and deadline
        self._seen: set[str] = set()
        self.problem: SQSError | None = None
        self.is_complete = False

    @property
    def seen(self) -> int:
        """How many different messages were received, those that are forgotten included."""
        return len(self._seen)

    def __len__(self) -> int:
        return len(self._handles)

    def batches(self) -> Iterator[list[ReceivedMessage]]:
        """Messages that were not seen before, until there are none, or `stop` is set.

        Raises:
            SQSError: SQS does not answer, or refuses.
        """
        repeats = 0
        while repeats < MOST_REPEATS and not self._stop.is_set():
            self.extend()
            try:
                received = self._receive()
            except OverLimitError:
                return  # so many are held that SQS gives no more
            if not received:
                self.is_complete = True
                return
            new = {m["MessageId"]: m for m in received if m["MessageId"] not in self._seen}
            self._seen |= new.keys()
            repeats = 0 if new else repeats + 1
            if new:
                yield list(new.values())

    def _receive(self) -> list[ReceivedMessage]:
        called = self._clock.monotonic()
        receive = partial(self._queue.sqs.receive, self._queue.url, BATCH_ENTRIES, WAIT_SECONDS, OPTIONS)
        received = patiently(receive)
        for message in received:
            self._handles[message["MessageId"]] = message["ReceiptHandle"], called + HOLD_SECONDS
        return received

    def wait(self, seconds: float) -> None:
        """Let time pass, and extend what is held. It ends early once `stop` is set."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0 and not self._stop.is_set():
            self._stop.wait(min(left, HOLD_SECONDS / 8))
            self.extend()

    def extend(self) -> None:
        """Hide for longer what would be visible soon."""
        now = self._clock.monotonic()
        due = [key for key, (_, deadline) in self._handles.items() if deadline - now < HOLD_SECONDS / 2]
        for key in self._change(due, HOLD_SECONDS):
            self._handles[key] = self._handles[key][0], now + HOLD_SECONDS

    def handle(self, message_id: str) -> str:
        """The newest receipt handle of a message."""
        return self._handles[message_id][0]

    def forget(self, message_ids: Iterable[str]) -> None:
        """They are deleted."""
        for message_id in message_ids:
            self._handles.pop(message_id, None)

    def release(self) -> int:
        """Make all that is held visible again; how many SQS did not release, which takes `HOLD_SECONDS`."""
        kept = list(self._handles)
        released = self._change(kept, 0)
        self._handles.clear()
        return len(kept) - len(released)

    def _change(self, message_ids: Sequence[str], seconds: int) -> list[str]:
        """Those whose visibility was changed. A failure leaves a message as it is, which is no harm."""
        changed: list[str] = []
        for start in range(0, len(message_ids), BATCH_ENTRIES):
            batch = message_ids[start : start + BATCH_ENTRIES]
            changes = [(self._handles[key][0], seconds) for key in batch]
            try:
                failed = self._queue.sqs.change_visibility(self._queue.url, changes).failed
            except SQSError as error:
                self.problem = error
                break
            for why in failed.values():
                self.problem = why
            changed += [key for position, key in enumerate(batch) if position not in failed]
        return changed
