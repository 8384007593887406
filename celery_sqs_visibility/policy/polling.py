"""Polls of a queue: when the next one is due, and which ReceiveRequestAttemptId it repeats in a FIFO queue.

Polls of an idle queue are further apart, but none is later than an expected message. A message that becomes
visible during a long poll needs no poll of its own: "Long polling lets you consume messages from your Amazon
SQS queue as soon as they become available" (Amazon SQS Developer Guide).
"""

from __future__ import annotations

import bisect
import math
import uuid
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

#: If a poll does not bring an expected message, the queue is polled again after these seconds. After that the
#: message is left to the ordinary polls.
FOLLOW_UP_SECONDS: Final = (0.25, 1.0, 2.0)

#: First sleep of a queue whose `polling_interval` is 0 but whose maximum is not.
FIRST_SLEEP_SECONDS: Final = 1.0

#: Without a `polling_interval`, empty polls begin at least this far apart. It matters if SQS answers at once:
#: with `wait_time_seconds=0`, or for a FIFO queue at its limit of messages in flight.
EMPTY_POLL_SECONDS: Final = 1.0

#: SQS remembers a ReceiveRequestAttemptId for this long (API_ReceiveMessage).
ATTEMPT_SECONDS: Final = 300.0

#: How many expected messages to remember. Those expected last are forgotten.
MAX_EXPECTED: Final = 10_000


class PollSchedule:
    """When to poll one queue. Instants are monotonic. Not thread-safe: its owner locks.

    Args:
        interval: seconds to sleep after an empty poll.
        maximum: the longest sleep, reached while the queue stays empty.
    """

    def __init__(self, interval: float, maximum: float) -> None:
        self._interval = interval
        self._maximum = maximum
        self._sleep = interval
        self._sleep_until = 0.0
        self._expected: dict[str, tuple[float, int]] = {}  # message id: (instant, unsuccessful polls so far)
        self._in_order: list[tuple[float, str]] = []  # the same messages: (instant, message id), sorted

    def expect(self, message_id: str, at: float) -> bool:
        """Expect a message that becomes visible at that instant. Returns whether a poll is due sooner."""
        before = self.next_poll()
        self._remember(message_id, at, 0)
        if len(self._expected) > MAX_EXPECTED:
            self._forget(self._in_order[-1][1])  # the soonest retries are never late
        return self.next_poll() < before

    def polled(self, now: float, message_ids: Collection[str], *, took: float = math.inf) -> None:
        """Note the end of a poll and the messages that it brought.

        `took` is its duration in seconds; infinity if it was short on purpose.
        """
        self.arrived(message_ids)
        self._follow_up(now)
        if message_ids:
            self._sleep = self._interval
            self._sleep_until = now
        elif now >= self._sleep_until:  # a poll made only for an expected message doesn't change the sleep
            self._sleep_until = now + self._sleep
            self._sleep = min(max(self._sleep * 2, FIRST_SLEEP_SECONDS), self._maximum)
            if not self._interval:
                self._sleep_until = max(self._sleep_until, now - took + EMPTY_POLL_SECONDS)

    def poll_now(self) -> None:
        """Make the next poll due at once."""
        self._sleep, self._sleep_until = self._interval, 0.0

    def arrived(self, message_ids: Collection[str]) -> None:
        """Stop expecting these messages."""
        if self._expected:
            for message_id in message_ids:
                self._forget(message_id)

    def next_poll(self) -> float:
        """The instant of the next poll, in the past if it is due. Any thread."""
        expected = self.next_expected()
        return self._sleep_until if expected is None else min(self._sleep_until, expected)

    def hidden(self, now: float) -> int:
        """Count the hidden messages that come back later, up to `MAX_EXPECTED`. Any thread."""
        in_order = self._in_order.copy()  # atomic
        return len(in_order) - bisect.bisect_right(in_order, now, key=lambda expected: expected[0])

    def next_expected(self) -> float | None:
        """The instant at which the next message comes back; `None` if none is expected. Any thread."""
        first = self._in_order[:1]  # atomic
        return first[0][0] if first else None

    def _remember(self, message_id: str, at: float, polls: int) -> None:
        self._forget(message_id)
        self._expected[message_id] = (at, polls)
        bisect.insort(self._in_order, (at, message_id))

    def _forget(self, message_id: str) -> None:
        if message_id in self._expected:
            at, _ = self._expected.pop(message_id)
            del self._in_order[bisect.bisect_left(self._in_order, (at, message_id))]

    def _follow_up(self, now: float) -> None:
        """Expect messages again that were due and did not come, once for each follow-up."""
        due = bisect.bisect_right(self._in_order, now, key=lambda expected: expected[0])
        missed, self._in_order = self._in_order[:due], self._in_order[due:]
        for _, message_id in missed:
            _, polls = self._expected.pop(message_id)
            if polls < len(FOLLOW_UP_SECONDS):
                self._remember(message_id, now + FOLLOW_UP_SECONDS[polls], polls + 1)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A ReceiveRequestAttemptId, and the monotonic instant before the first request that used it."""

    id: str
    since: float


class Attempts:
    """The attempts to receive from one FIFO queue. Not thread-safe: its owner locks.

    If the answer to a receive is lost, the groups of its messages are closed until their visibility timeout
    ends, unless ReceiveMessage is called again with the same ReceiveRequestAttemptId: for five minutes it
    answers with the same messages and receipt handles, and their visibility timeout begins anew.

    Args:
        visibility_timeout: seconds after which another worker may have the messages.
    """

    def __init__(self, visibility_timeout: int) -> None:
        self._lasts = min(ATTEMPT_SECONDS, visibility_timeout)
        self._unanswered: deque[Attempt] = deque()

    def begin(self, now: float) -> Attempt:
        """Choose the attempt for the next request. One that got no answer is repeated."""
        while self._unanswered:
            attempt = self._unanswered.popleft()
            if now - attempt.since < self._lasts:
                return attempt
        return Attempt(uuid.uuid4().hex, now)

    def unanswered(self, attempt: Attempt) -> None:
        """Note that a request of this attempt got no answer."""
        self._unanswered.append(attempt)
