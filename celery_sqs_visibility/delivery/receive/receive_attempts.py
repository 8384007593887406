"""Receives of a FIFO queue that got no answer: tried again under their id, they bring the same messages.

SQS may have handed out messages before the answer was lost. Nobody has them, and their groups are closed
until their visibility timeout is over; unless ReceiveMessage is called again with the same
ReceiveRequestAttemptId: it answers with the same messages and receipt handles, and their visibility timeout
begins anew. That holds for five minutes, and as long as nobody has deleted the messages or changed their
visibility: of a request that was never answered nobody could.
"""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass
from typing import Final

#: How long SQS knows an id, in seconds (API_ReceiveMessage).
ATTEMPT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A ReceiveRequestAttemptId, and the monotonic instant before the first request that had it."""

    id: str
    since: float


class Attempts:
    """The attempts to receive from one FIFO queue. Not thread-safe: its owner locks.

    Args:
        visibility_timeout: seconds after which another worker may have the messages anyway; `None`: unknown.
    """

    def __init__(self, visibility_timeout: int | None) -> None:
        self._lasts = min(ATTEMPT_SECONDS, visibility_timeout or ATTEMPT_SECONDS)
        self._unanswered: deque[Attempt] = deque()

    def begin(self, now: float) -> Attempt:
        """The attempt of a request that is made now: one without an answer is tried again."""
        while self._unanswered:
            attempt = self._unanswered.popleft()
            if now - attempt.since < self._lasts:
                return attempt
        return Attempt(uuid.uuid4().hex, now)

    def unanswered(self, attempt: Attempt) -> None:
        """A request of that attempt has failed, and nobody knows what SQS did."""
        self._unanswered.append(attempt)
