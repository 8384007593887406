"""When to poll a queue next: sleep while it is idle, but never past a message known to come back."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Sequence
from typing import Final

#: A reappearance is approximate: where the message did not come at its time, look again after these
#: many seconds, then leave it to the ordinary polling (another worker took it, or SQS is late).
FOLLOW_UPS = (0.25, 1.0, 2.0)

#: Seconds. What comes back so soon is waited for without a request: a long poll that waits in the meantime
#: may be slow to see it, since some servers look again only now and then.
IMMINENT = 0.2

#: First sleep of a queue whose `polling_interval` is 0 but whose maximum is not.
FIRST_SLEEP = 1.0

#: Without a `polling_interval` a poll that ends sooner than after so many seconds, and brings nothing, is
#: followed by the next one only then. So a queue whose polls do not wait is polled once a second: because of
#: `wait_time_seconds=0`, or of a server that answers at once (a FIFO queue at its limit in flight).
EMPTY_POLL_SECONDS: Final = 1.0

#: More expected messages than this are not remembered; then those that come back last are forgotten.
MAX_EXPECTED = 10_000

#: A message that is expected: the instant, and its id.
Expected = tuple[float, str]


class PollSchedule:
    """The next poll of one queue. Instants are of the monotonic clock. Not thread-safe: its owner locks.

    Args:
        interval: seconds to sleep after an empty poll.
        maximum: what the sleep grows to while the queue stays empty.
    """

    def __init__(self, interval: float, maximum: float) -> None:
        self._interval = interval
        self._maximum = maximum
        self._sleep = interval
        self._sleep_until = 0.0
        self._expected: dict[str, tuple[float, int]] = {}  # message id: (instant, looks so far)
        self._in_order: list[Expected] = []  # the same messages, sorted

    def expect(self, message_id: str, at: float) -> None:
        """A message that this process hid becomes visible at that instant."""
        self._note(message_id, at, 0)
        if len(self._expected) > MAX_EXPECTED:
            self._forget(self._in_order[-1][1])  # the soonest retries are never late

    def polled(
        self, now: float, message_ids: Collection[str], *, more: bool = False, took: float = math.inf
    ) -> None:
        """A poll has ended.

        Args:
            now: when.
            message_ids: what it brought.
            more: whether there may be more, since it brought all that it asked for.
            took: the seconds that it took; infinite for a poll that was short on purpose, of which it says
                nothing that it ended soon.
        """
        self._looked(now, message_ids, FOLLOW_UPS)
        if message_ids:
            self._sleep = self._interval
            self._sleep_until = now
        elif (
            now >= self._sleep_until
        ):  # a poll for an expected message alone neither grows nor moves the sleep
            self._sleep_until = now + self._sleep
            self._sleep = min(max(self._sleep * 2, FIRST_SLEEP), self._maximum)
            if not self._interval:
                self._sleep_until = max(self._sleep_until, now - took + EMPTY_POLL_SECONDS)
        if not more and (soon := self.next_expected()) is not None and soon <= now + IMMINENT:
            self._sleep_until = max(self._sleep_until, soon)

    def glanced(self, now: float, message_ids: Collection[str]) -> None:
        """A short poll beside a long one brought these; what else was due is left to the long one."""
        self._looked(now, message_ids, ())

    def came(self, message_ids: Collection[str]) -> None:
        """A poll brought these, of which nothing else is to be concluded."""
        for message_id in message_ids:
            self._forget(message_id)

    def is_imminent(self, now: float) -> bool:
        """Whether a message comes back within a moment, but not yet."""
        later = bisect.bisect_right(self._in_order, now, key=_instant)
        return later < len(self._in_order) and self._in_order[later][0] <= now + IMMINENT

    def next_poll(self) -> float:
        """The instant of the next poll; in the past: now."""
        expected = self.next_expected()
        return self._sleep_until if expected is None else min(self._sleep_until, expected)

    def next_expected(self) -> float | None:
        """The instant at which the next message comes back, if one is known to."""
        return self._in_order[0][0] if self._in_order else None

    def _note(self, message_id: str, at: float, looks: int) -> None:
        self._forget(message_id)
        self._expected[message_id] = (at, looks)
        bisect.insort(self._in_order, (at, message_id))

    def _forget(self, message_id: str) -> None:
        if message_id in self._expected:
            at, _ = self._expected.pop(message_id)
            del self._in_order[bisect.bisect_left(self._in_order, (at, message_id))]

    def _looked(self, now: float, message_ids: Collection[str], follow_ups: Sequence[float]) -> None:
        """These came; what else was due is looked for again, as often as there are follow-ups."""
        self.came(message_ids)
        due = bisect.bisect_right(self._in_order, now, key=_instant)
        missed, self._in_order = self._in_order[:due], self._in_order[due:]
        for _, message_id in missed:
            _, looks = self._expected.pop(message_id)
            if looks < len(follow_ups):
                self._note(message_id, now + follow_ups[looks], looks + 1)


def _instant(expected: Expected) -> float:
    return expected[0]
