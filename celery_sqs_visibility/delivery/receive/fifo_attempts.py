"""Attempts to receive from a FIFO queue: a request without an answer is repeated under its id."""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass
from typing import Final

#: SQS remembers a ReceiveRequestAttemptId for this long (API_ReceiveMessage).
ATTEMPT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A ReceiveRequestAttemptId, and the monotonic instant before the first request that had it."""

    id: str
    since: float


class Attempts:
    """The attempts to receive from one FIFO queue. Not thread-safe: its owner locks.

    SQS may have handed out messages before its answer was lost. Their groups are closed until their
    visibility timeout ends, unless ReceiveMessage is called again with the same ReceiveRequestAttemptId: it
    answers with the same messages and receipt handles, and their visibility timeout begins anew. That holds
    for five minutes, as long as nobody has deleted the messages or changed their visibility; without the
    answer nobody could.

    Args:
        visibility_timeout: seconds after which another worker may have the messages anyway; `None`: unknown.
    """

    def __init__(self, visibility_timeout: int | None) -> None:
        self._lasts = min(ATTEMPT_SECONDS, visibility_timeout or ATTEMPT_SECONDS)
        self._unanswered: deque[Attempt] = deque()

    def begin(self, now: float) -> Attempt:
        """The attempt for the next request: one without an answer is repeated."""
        while self._unanswered:
            attempt = self._unanswered.popleft()
            if now - attempt.since < self._lasts:
                return attempt
        return Attempt(uuid.uuid4().hex, now)

    def unanswered(self, attempt: Attempt) -> None:
        """A request of this attempt got no answer, so SQS may have handed out messages."""
        self._unanswered.append(attempt)
