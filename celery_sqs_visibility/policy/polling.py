"""When to poll a queue next: sleep while it is idle, but never past a message known to come back."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

#: A reappearance is approximate: where the message did not come at its time, look again after these
#: many seconds, then leave it to the ordinary polling (another worker took it, or SQS is late).
FOLLOW_UPS = (0.25, 1.0, 2.0)

#: Seconds. What comes back so soon is waited for without a request: a long poll that waits in the meantime
#: may be slow to see it, since some servers look again only now and then.
IMMINENT = 0.2

#: First sleep of a queue whose `polling_interval` is 0 but whose maximum is not.
FIRST_SLEEP = 1.0

#: More expected messages than this are not remembered: the queue is busy then, and polled anyway.
MAX_EXPECTED = 10_000


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
        self._soonest: list[tuple[float, str]] = []  # heap; an entry that _expected does not confirm is stale

    def expect(self, message_id: str, at: float) -> None:
        """A message that this process hid becomes visible at that instant."""
        if len(self._expected) < MAX_EXPECTED:
            self._note(message_id, at, 0)

    def polled(self, now: float, message_ids: Collection[str], *, more: bool = False) -> None:
        """A poll brought these messages; whether there may be more, as it brought all that it asked for."""
        self._looked(now, message_ids, FOLLOW_UPS)
        if message_ids:
            self._sleep = self._interval
            self._sleep_until = now
        elif (
            now >= self._sleep_until
        ):  # a poll for an expected message alone neither grows nor moves the sleep
            self._sleep_until = now + self._sleep
            self._sleep = min(max(self._sleep * 2, FIRST_SLEEP), self._maximum)
        if not more and (soon := self.next_expected()) is not None and soon <= now + IMMINENT:
            self._sleep_until = max(self._sleep_until, soon)

    def glanced(self, now: float, message_ids: Collection[str]) -> None:
        """A short poll beside a long one brought these; what else was due is left to the long one."""
        self._looked(now, message_ids, ())

    def is_imminent(self, now: float) -> bool:
        """Whether a message comes back within a moment, but not yet."""
        heap, looked_at = self._soonest, [0]
        while looked_at:  # what is due and what is imminent; all below a later one are later
            place = looked_at.pop()
            if place < len(heap) and heap[place][0] <= now + IMMINENT:
                at, message_id = heap[place]
                if at > now and self._is_expected(message_id, at):
                    return True
                looked_at += [2 * place + 1, 2 * place + 2]
        return False

    def next_poll(self) -> float:
        """The instant of the next poll; in the past: now."""
        expected = self.next_expected()
        return self._sleep_until if expected is None else min(self._sleep_until, expected)

    def next_expected(self) -> float | None:
        """The instant at which the next message comes back, if one is known to."""
        while self._soonest:
            at, message_id = self._soonest[0]
            if self._is_expected(message_id, at):
                return at
            heapq.heappop(self._soonest)
        return None

    def _note(self, message_id: str, at: float, looks: int) -> None:
        self._expected[message_id] = (at, looks)
        heapq.heappush(self._soonest, (at, message_id))

    def _is_expected(self, message_id: str, at: float) -> bool:
        return self._expected.get(message_id, (None,))[0] == at

    def _looked(self, now: float, message_ids: Collection[str], follow_ups: Sequence[float]) -> None:
        """These came; what else was due is looked for again, as often as there are follow-ups."""
        for message_id in message_ids:
            self._expected.pop(message_id, None)
        while (at := self.next_expected()) is not None and at <= now:
            _, message_id = heapq.heappop(self._soonest)
            _, looks = self._expected.pop(message_id)
            if looks < len(follow_ups):
                self._note(message_id, now + follow_ups[looks], looks + 1)
