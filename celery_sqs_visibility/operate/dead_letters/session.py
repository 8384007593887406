"""A command's look at a dead-letter queue: begun, watched, safe to interrupt, and given back at its end."""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, TextIO

import click

from celery_sqs_visibility.aws.clock_offset import clock_offset
from celery_sqs_visibility.aws.queue_counts import HIDDEN, VISIBLE, count
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.dead_letters.held import HOLD_SECONDS, HeldMessages
from celery_sqs_visibility.operate.dead_letters.letter import Letter, read_letter
from celery_sqs_visibility.operate.dead_letters.places import Place
from celery_sqs_visibility.operate.dead_letters.selection import Selection
from celery_sqs_visibility.operate.invocation import counted, say
from celery_sqs_visibility.operate.stopping import stop_on_signals
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

MOVES_ON: Final = (
    "Warning: dead-letter queue {!r} has a redrive policy of its own, and each look at a message counts as a "
    "receive: messages may move on."
)

LEFT_OUT: Final = (
    "Left out: {} of {!r} that somebody else has received: another command, a worker or a Lambda function. A "
    f"command gives them back at its end, or {HOLD_SECONDS} s after it was killed."
)

#: How often an answer is looked for, in seconds.
ANSWER_SECONDS: Final = 0.5

#: How exactly SQS's clock is known: its answers tell whole seconds. A clock that is not further off is right.
OFFSET_ERROR_SECONDS: Final = 1.0


@dataclass
class Session:
    """One look at a dead-letter queue. The command's thread.

    Attributes:
        place: the queue.
        selection: the letters that are meant.
        limit: most of them.
        held: what was received.
        stop: set at Ctrl-C and SIGTERM.
        others: letters of other queues that were seen and left alone.
        clock_offset: seconds that this machine's clock is ahead of SQS's, by which letters have their ages.
    """

    place: Place
    selection: Selection
    limit: int | None
    held: HeldMessages
    stop: threading.Event
    clock_offset: float = 0.0
    others: int = field(default=0, init=False)
    _found: set[str] = field(default_factory=set, init=False)

    def now(self) -> float:
        """Seconds since the epoch, by SQS's clock."""
        return SYSTEM_CLOCK.wall() - self.clock_offset

    def missing(self) -> list[str]:
        """The ids that were asked for, and mean no letter that was seen."""
        return [each for each in self.selection.ids if each not in self._found]

    def number_elsewhere(self) -> int:
        """Messages that were there at the beginning, and somebody else has, or had; 0, where we may not ask.

        Ask before the session's own are given back. SQS's counts lag behind deletions.
        """
        held, letters = self.held, self.place.letters
        # What is visible and was not received was given back since; in a FIFO queue it waits behind others.
        given_back = [VISIBLE] if held.is_complete and not letters.fifo else []
        try:
            left = count(letters, HIDDEN, *given_back) - (len(held) if held.is_complete else held.seen)
        except SQSError:
            return 0
        return max(0, min(left, self.place.number_before - held.seen))

    def agrees(self, question: str) -> bool:
        """Ask, and go on hiding what is held. No answer is no, and so is Ctrl-C."""
        say(f"{question} [y/N]: ", nl=False, err=True)
        stdin: TextIO | None = sys.stdin  # `None` where it is closed
        while stdin and not (self.stop.is_set() or select.select([stdin], [], [], ANSWER_SECONDS)[0]):
            self.held.extend()
        answer = "" if stdin is None or self.stop.is_set() else stdin.readline().strip().lower()
        if not answer:
            say(err=True)
        return answer in {"y", "yes"}

    def batches(self) -> Iterator[list[Letter]]:
        """The letters that are meant, as they are received."""
        left = sys.maxsize if self.limit is None else self.limit
        readable = self.place.context.options.readable_payloads
        with self._progress() as advance:
            for messages in self.held.batches():
                letters = [read_letter(self.place.letters, message, readable) for message in messages]
                meant = self._meant(letters)[:left]
                self._found.update(*map(self.selection.named, meant))
                if meant:
                    yield meant
                advance(len(messages))
                left -= len(meant)
                if left <= 0 or self._has_all(meant):
                    return

    def _meant(self, letters: Sequence[Letter]) -> list[Letter]:
        now = self.now()
        self.others += sum(not self.selection.is_of_source(letter) for letter in letters)
        return [letter for letter in letters if self._takes(letter, now)]

    def _takes(self, letter: Letter, now: float) -> bool:
        """Whether it is meant; the first that an id names is, whatever the clocks say."""
        asked = self.selection
        if asked.named(letter) - self._found:
            asked = replace(asked, sent_before=None)
        return asked.takes(letter, now)

    def _has_all(self, meant: Sequence[Letter]) -> bool:
        """Whether a single letter was asked for by its whole id, and is there."""
        ids = self.selection.ids
        return len(ids) == 1 and any(letter.id in ids for letter in meant)

    def _progress(self) -> Any:
        """A bar on a terminal; its length is approximate, as SQS's counts are."""
        if not sys.stderr.isatty():
            return nullcontext(lambda _number: None)
        try:
            length = count(self.place.letters, VISIBLE)
        except SQSError:
            length = 0
        return _bar(length)


@contextmanager
def _bar(length: int) -> Iterator[Callable[[int], None]]:
    with click.progressbar(length=max(length, 1), file=sys.stderr, show_pos=True) as bar:
        yield bar.update


@contextmanager
def session_of(
    place: Place, selection: Selection, limit: int | None, *, only_earlier: bool = False
) -> Iterator[Session]:
    """Look at dead letters; at the end all that were neither deleted nor sent back are visible again.

    With `only_earlier` letters that come while it lasts are left alone.
    """
    if place.moves_on:
        say(MOVES_ON.format(place.letters.name), err=True)
    with stop_on_signals(second_raises=True) as stop:
        held = HeldMessages(place.letters, SYSTEM_CLOCK, stop)
        ahead = clock_offset(place.letters.sqs.location().endpoint) or 0.0
        ahead = ahead if abs(ahead) > OFFSET_ERROR_SECONDS else 0.0
        session = Session(place, selection, limit, held, stop, ahead)
        if only_earlier:
            error = OFFSET_ERROR_SECONDS if session.clock_offset else 0.0
            session.selection = replace(selection, sent_before=session.now() + error)
        try:
            yield session
            elsewhere = session.number_elsewhere()
        finally:
            if left := held.release():
                say(
                    f"{counted(left, 'message')} could not be given back, to be visible again in "
                    f"{HOLD_SECONDS} s: {held.problem}",
                    err=True,
                )
    if elsewhere:
        say(LEFT_OUT.format(counted(elsewhere, "message"), place.letters.name), err=True)
    if session.others:
        say(
            f"Left out: {counted(session.others, 'dead letter')} of other queues; --any-source takes them, "
            "too.",
            err=True,
        )
