"""Which dead letters are meant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from celery_sqs_visibility.operate.dead_letters.letter import Letter

#: Characters of an id that a table shows, and that suffice to name a message.
SHORT_ID_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that pass every filter that is given.

    Attributes:
        ids: of messages or tasks, or the first eight characters of one.
        task: a glob of the task's name.
        exception: a glob of the exception: its class, with or without module, or class and text.
        older_than: seconds.
        newer_than: seconds.
        sources: names of the queue that they were given up in; `None` is any. A letter that names no queue
            is any queue's.
        sent_before: seconds since the epoch, by SQS's clock. What a retry has sent back may fail, and be here
            again, at once.
    """

    ids: Collection[str] = ()
    task: str | None = None
    exception: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    sources: Collection[str] | None = None
    sent_before: float | None = None

    def is_of_source(self, letter: Letter) -> bool:
        """Whether the letter was given up in one of the queues."""
        return self.sources is None or letter.source is None or letter.source in self.sources

    def named(self, letter: Letter) -> set[str]:
        """Those of the ids that mean the letter."""
        return set(self.ids) & letter_names(letter)

    def takes(self, letter: Letter, now: float) -> bool:
        """Whether the letter is meant, `now` in seconds since the epoch, by SQS's clock."""
        age = letter.age(now)
        return (
            self.is_of_source(letter)
            and (not self.ids or bool(self.named(letter)))
            and (self.task is None or fnmatchcase(letter.task or "", self.task))
            and (self.exception is None or _matches(letter.said.get("exception", ""), self.exception))
            and (self.sent_before is None or now - age < self.sent_before)
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age < self.newer_than)
        )


def letter_names(letter: Letter) -> set[str]:
    """By which a letter may be called: its id, its task's, that of the message that was given up."""
    whole = {letter.id, letter.task_id, letter.said.get("message_id")} - {None}
    return {name for text in whole if text for name in (text, text[:SHORT_ID_CHARACTERS])}


def _matches(exception: str, glob: str) -> bool:
    kind = exception.partition(":")[0]
    return any(fnmatchcase(text, glob) for text in (exception, kind, kind.rpartition(".")[2]))
