"""Turned time: a task's attempts and delays, as SQS sees them, without waiting for any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.testing.account import MessageAccount
from celery_sqs_visibility.testing.world import World

if TYPE_CHECKING:
    from typing import Self


class TurnedTime:
    """A context manager in which tasks run in memory, and time passes when it is turned.

    Give it to one test. Inside, everything of this package in the process reads the turned clock: no worker
    may run in another thread.
    """

    def __init__(self) -> None:
        self._world = World()

    def __enter__(self) -> Self:
        self._world.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._world.__exit__(*exc_info)

    def open(self, app: Celery[Any]) -> None:
        """Take in what the app publishes: code under test may do that before `send` and `run` tell the app.

        Raises:
            ImproperlyConfigured: its broker is not SQS, its tasks are run eagerly, or another app is open.
        """
        self._world.open(app)

    def run(self, signature: Any) -> MessageAccount:
        """Publish a task, work until all queues are empty, and return the account of its message.

        Tasks that it publishes are run, too. Of a group it is the account of its first task, of a chain that
        of its last.
        """
        result = self.send(signature)
        self.work()
        return self._world.accounts.so_far(result)

    def send(self, signature: Any) -> Any:
        """Publish a task, which runs when there is time to work; its result."""
        return self._world.send(signature)

    def work(self) -> None:
        """Work until all queues are empty, whatever time that takes."""
        self._world.work()

    def account(self, result: Any) -> MessageAccount:
        """The account of another task, by its result or its id."""
        return self._world.accounts.so_far(result)

    def turn(self, seconds: float) -> None:
        """Let time pass: in a test between tasks, or in a task, whose message is extended meanwhile.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"expected 0 or more seconds, got {seconds!r}: time does not go back")
        self._world.pass_time(seconds)

    def now(self) -> float:
        """The turned time, in seconds since the epoch: for the code under test."""
        return self._world.clock.wall()

    @property
    def passed(self) -> float:
        """Seconds that have passed since the block began."""
        return self._world.clock.passed

    def dead_letters(self) -> list[ReceivedMessage]:
        """The messages in the dead-letter queues of the app, as ReceiveMessage answers them."""
        return self._world.dead_letters()


def turned_time() -> TurnedTime:
    """Return a context manager: see `TurnedTime`."""
    return TurnedTime()
