"""Turned time: a task's attempts and delays, as SQS sees them, without waiting for any of them."""

from __future__ import annotations

from typing import Any

from celery_sqs_visibility.testing.account import MessageAccount
from celery_sqs_visibility.testing.world import World


class TurnedTime(World):
    """A context manager in which tasks run in memory, and time passes when it is turned.

    Give it to one test. Inside, everything of this package in the process reads the turned clock: no worker
    may run in another thread.
    """

    def account(self, result: Any) -> MessageAccount:
        """The account of another task, by its result or its id."""
        return self.accounts.so_far(result)

    def turn(self, seconds: float) -> None:
        """Let time pass: in a test between tasks, or in a task, whose message is extended meanwhile.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"expected 0 or more seconds, got {seconds!r}: time does not go back")
        self.pass_time(seconds)

    @property
    def passed(self) -> float:
        """Seconds that have passed since the block began."""
        return self.clock.passed


def turned_time() -> TurnedTime:
    """Return a context manager: see `TurnedTime`."""
    return TurnedTime()
