"""Accounts of messages: the history of each task's message, as the package's events tell it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryEvent, subscribe
from celery_sqs_visibility.testing.clock import machine_time

#: How long a test waits for the end of a message by default.
END_SECONDS: Final = 30.0

#: The interval at which another process's diary is read.
LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True)
class LetterFacts:
    """A dead letter that a worker sent.

    Attributes:
        reason: why the message was given up, as in the letter's attribute.
        queue: Celery's name of the queue that the message came from.
    """

    reason: str
    queue: str


@dataclass
class MessageAccount:
    """The history of the message, or messages, of one task id.

    A message that SQS itself moves to the dead-letter queue emits no event: see `TurnedTime.dead_letters`.
    """

    task_id: str
    events: list[DeliveryEvent] = field(default_factory=list)

    @property
    def receives(self) -> int:
        """Number of receives by workers."""
        return len(self._of(events.Received))

    @property
    def runs(self) -> int:
        """Number of runs that began."""
        return len(self._of(events.Started))

    @property
    def failures(self) -> list[str]:
        """The errors of its failed runs, as `repr` shows them."""
        return [event.error for event in self._of(events.Failed)]

    @property
    def hidden(self) -> list[float]:
        """Seconds for which it was hidden after each failed run."""
        return [event.seconds for event in self._of(events.Hidden)]

    @property
    def deleted(self) -> bool:
        """Whether SQS has deleted the message."""
        return bool(self._of(events.Deleted))

    @property
    def dead_letter(self) -> LetterFacts | None:
        """The dead letter that a worker sent for it; `None` if none did."""
        letters = self._of(events.DeadLettered)
        return LetterFacts(letters[-1].reason, letters[-1].delivery.queue) if letters else None

    @property
    def ended(self) -> bool:
        """Whether the message has ended: it was deleted, after a success or a dead letter."""
        last = self.events[-1] if self.events else None
        return isinstance(last, events.Deleted)

    def _of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]

    def __str__(self) -> str:
        return "\n".join(map(describe, self.events)) or "nothing happened to it so far"

    def __repr__(self) -> str:
        letter = f", dead letter: {self.dead_letter.reason!r}" if self.dead_letter else ""
        state = "deleted" if self.deleted else "not deleted"
        return f"<account: {self.runs} runs, hidden for {self.hidden} s, {state}{letter}>"


class Accounts:
    """Accounts of all messages since `start`, of workers in this process and of those with a diary.

    Any thread.

    Args:
        read: returns further events of other processes; `None` if there are none.
    """

    def __init__(self, read: Callable[[], list[DeliveryEvent]] | None = None) -> None:
        self._read = read
        self._changed = threading.Condition()  # guards _accounts
        self._accounts: dict[str, MessageAccount] = {}
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Listen to this process's events from now on."""
        self._end = subscribe(self.hear)

    def stop(self) -> None:
        """Stop listening."""
        self._end()

    def hear(self, event: DeliveryEvent) -> None:
        """Add an event to its account."""
        task_id = event.delivery.task_id
        if task_id is None:
            return
        with self._changed:
            self._account(task_id).events.append(event)
            self._changed.notify_all()

    def so_far(self, result: Any) -> MessageAccount:
        """The account of a task so far, by its result or its id; for a group, that of its first task."""
        while getattr(result, "results", None):
            result = result.results[0]
        self._read_others()
        with self._changed:
            return self._account(str(getattr(result, "id", result)))

    def of(self, result: Any, timeout: float = END_SECONDS) -> MessageAccount:
        """The account of a task, by its result or its id, once its message is deleted.

        Raises:
            TimeoutError: it was not deleted in time. The error has its history so far.
        """
        return self.wait(result, lambda account: account.ended, timeout)

    def wait(
        self, result: Any, until: Callable[[MessageAccount], object], timeout: float = END_SECONDS
    ) -> MessageAccount:
        """The account of a task, once `until` returns true for it.

        Raises:
            TimeoutError: `until` did not in time.
        """
        deadline, account = machine_time() + timeout, self.so_far(result)
        while not until(account):
            if machine_time() > deadline:
                raise TimeoutError(f"waited {timeout:g} s for the message of {account.task_id}:\n{account}")
            with self._changed:
                if not until(account):
                    self._changed.wait(LOOK_SECONDS)
            self._read_others()
        return account

    def _account(self, task_id: str) -> MessageAccount:
        return self._accounts.setdefault(task_id, MessageAccount(task_id))

    def _read_others(self) -> None:
        for event in self._read() if self._read else ():
            self.hear(event)


def describe(event: DeliveryEvent) -> str:
    """One line about an event: its name, receive count and own facts."""
    facts = {each.name: getattr(event, each.name) for each in fields(event) if each.name != "delivery"}
    own = "".join(f", {name} {value!r}" for name, value in facts.items())
    return f"{type(event).__name__} (receive {event.delivery.receive_count}{own})"
