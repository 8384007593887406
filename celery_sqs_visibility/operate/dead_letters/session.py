"""A command's look at a dead-letter queue: begun, watched, safe to interrupt, and given back at its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import click

from celery_sqs_visibility.aws.queue_counts import VISIBLE, count
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.dead_letters.held import HOLD_SECONDS, HeldMessages
from celery_sqs_visibility.operate.dead_letters.letter import Letter, read_letter
from celery_sqs_visibility.operate.dead_letters.places import Place
from celery_sqs_visibility.operate.dead_letters.selection import Selection
from celery_sqs_visibility.operate.invocation import counted
from celery_sqs_visibility.operate.stopping import stop_on_signals
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

MOVES_ON: Final = (
    "Warning: dead-letter queue {!r} has a redrive policy of its own, and each look at a message counts as a "
    "receive: messages may move on."
)


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
    """

    place: Place
    selection: Selection
    limit: int | None
    held: HeldMessages
    stop: threading.Event
    others: int = field(default=0, init=False)

    def batches(self) -> Iterator[list[Letter]]:
        """The letters that are meant, as they are received."""
        left = sys.maxsize if self.limit is None else self.limit
        bucket = self.place.context.options.payload_bucket
        with self._progress() as advance:
            for messages in self.held.batches():
                meant = self._meant([read_letter(self.place.letters, each, bucket) for each in messages])[
                    :left
                ]
                if meant:
                    yield meant
                advance(len(messages))
                left -= len(meant)
                if left <= 0 or self._has_all(meant):
                    return

    def _meant(self, letters: Sequence[Letter]) -> list[Letter]:
        now = SYSTEM_CLOCK.wall()
        self.others += sum(not self.selection.is_of_source(letter) for letter in letters)
        return [letter for letter in letters if self.selection.takes(letter, now)]

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
def session_of(place: Place, selection: Selection, limit: int | None) -> Iterator[Session]:
    """Look at dead letters; at the end all that were neither deleted nor sent back are visible again."""
    if place.moves_on:
        click.echo(MOVES_ON.format(place.letters.name), err=True)
    with stop_on_signals(second_raises=True) as stop:
        held = HeldMessages(place.letters, SYSTEM_CLOCK, stop)
        session = Session(place, selection, limit, held, stop)
        try:
            yield session
        finally:
            if left := held.release():
                click.echo(
                    f"{counted(left, 'message')} could not be given back, to be visible again in "
                    f"{HOLD_SECONDS} s: {held.problem}",
                    err=True,
                )
    if session.others:
        click.echo(
            f"Left out: {counted(session.others, 'dead letter')} of other queues; --any-source takes them, "
            "too.",
            err=True,
        )
