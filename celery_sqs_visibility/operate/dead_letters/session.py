"""A command's session with a dead-letter queue.

Received messages stay hidden until the end, and are then released, even after Ctrl-C.
"""

from __future__ import annotations

import math
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Final, TextIO

import click

from celery_sqs_visibility.aws.diagnostics import clock_offset
from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import HIDDEN, VISIBLE, Queue, count
from celery_sqs_visibility.aws.redrive import parse_redrive_policy
from celery_sqs_visibility.delivery.receive.decoder import SOURCE_ARN
from celery_sqs_visibility.errors import OverLimitError, SQSError
from celery_sqs_visibility.operate.app_queues import dead_letter_queue, inspect_queue
from celery_sqs_visibility.operate.dead_letters.letter import Letter, Selection, read_letter
from celery_sqs_visibility.operate.invocation import CommandError, counted, say, stop_on_signals, with_retries
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.queue_names import REDRIVE_POLICY
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: How long a message is hidden at a time, and stays hidden if the command is killed.
HOLD_SECONDS: Final = 120

#: After this many consecutive receives without a new message, or with later ones only, the search ends.
MAX_REPEATS: Final = 3

OPTIONS: Final = ReceiveOptions(HOLD_SECONDS, ("All",), ("All",))

#: The interval at which the terminal is checked for an answer.
ANSWER_SECONDS: Final = 0.5

#: SQS's answers have the time in whole seconds: a smaller difference of the clocks is ignored.
OFFSET_ERROR_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Place:
    """A queue and its dead-letter queue.

    Attributes:
        is_of_policy: whether the source's redrive policy names that dead-letter queue.
    """

    context: BrokerContext
    source: Queue
    letters: Queue
    is_of_policy: bool

    @property
    def source_names(self) -> set[str]:
        """Celery's and SQS's names of the source."""
        return {self.source.name, self.source.sqs_name}

    def target_of(self, letter: Letter) -> Queue:
        """The queue in which a letter was given up, or the source if it names none.

        Raises:
            SQSError: the queue does not exist, or SQS does not answer.
        """
        if letter.source is None or letter.source in self.source_names:
            return self.source
        if not letter.details and (arn := letter.system.get(SOURCE_ARN)):
            return self.context.queues.by_arn(arn)
        return self.context.queues.find(letter.source)

    @property
    def moves_on(self) -> bool:
        """Whether the dead-letter queue has a redrive policy of its own; `False` if unknown."""
        return parse_redrive_policy(self._before) is not None

    @property
    def number_before(self) -> int:
        """Number of dead letters at the beginning, including hidden ones; 0 if unknown."""
        return sum(int(self._before.get(kind, 0)) for kind in (VISIBLE, HIDDEN))

    @cached_property
    def _before(self) -> Mapping[str, str]:
        """Attributes of the dead-letter queue at the beginning."""
        return inspect_queue(lambda: self.letters, [REDRIVE_POLICY, VISIBLE, HIDDEN]).attributes or {}


def find_place(context: BrokerContext, queue: str, letters: str | None) -> Place:
    """Find a queue and its dead-letter queue, or the one named by `letters`.

    Raises:
        CommandError: the queue has no dead-letter queue.
        SQSError: a queue does not exist, or SQS refuses.
    """
    source = context.queues.find(queue)
    found = context.queues.find(letters) if letters else dead_letter_queue(context, source)
    if found is None:
        raise CommandError(
            f"queue {queue!r} has no dead-letter queue: no redrive policy, and no option dead_letter_queue. "
            "Name the queue that has its dead letters by --dead-letter-queue"
        )
    policy = context.redrive.get(source, SYSTEM_CLOCK.monotonic())
    return Place(context, source, found, policy is not None and policy.name == found.sqs_name)


def count_if_known(queue: Queue, *kinds: str) -> int | None:
    """The total number of messages of these kinds; `None` if SQS does not tell."""
    try:
        return count(queue, *kinds)
    except SQSError:
        return None


class HeldMessages:
    """Receives messages, and extends them until they are released or forgotten. The command's thread.

    Attributes:
        problem: the latest error of a visibility change.
        is_complete: whether SQS had no more messages.
    """

    def __init__(self, queue: Queue, clock: Clock, stop: threading.Event) -> None:
        self._queue = queue
        self._clock = clock
        self._stop = stop
        self._handles: dict[str, tuple[str, float]] = {}  # message id to newest handle and deadline
        self._seen: set[str] = set()
        self.problem: SQSError | None = None
        self.is_complete = False

    @property
    def seen(self) -> int:
        """Number of different messages received, including forgotten ones."""
        return len(self._seen)

    def __len__(self) -> int:
        return len(self._handles)

    def batches(self) -> Iterator[list[ReceivedMessage]]:
        """Receive new messages until there are none or `stop` is set.

        Raises:
            SQSError: SQS does not answer, or refuses.
        """
        repeats = 0
        while repeats < MAX_REPEATS and not self._stop.is_set():
            self.extend()
            try:
                received = self._receive()
            except OverLimitError:
                return  # SQS gives no more while this many are in flight
            if not received:
                self.is_complete = True
                return
            new = {m["MessageId"]: m for m in received if m["MessageId"] not in self._seen}
            self._seen |= new.keys()
            repeats = 0 if new else repeats + 1
            if new:
                yield list(new.values())

    def _receive(self) -> list[ReceivedMessage]:
        called = self._clock.monotonic()
        # A long poll of one second, because a short one asks only some of SQS's servers.
        receive = partial(self._queue.sqs.receive, self._queue.url, BATCH_ENTRIES, 1, OPTIONS)
        received = with_retries(receive)
        for message in received:
            self._handles[message["MessageId"]] = message["ReceiptHandle"], called + HOLD_SECONDS
        return received

    def wait(self, seconds: float) -> None:
        """Wait, while extending held messages. Returns early when `stop` is set."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0 and not self._stop.is_set():
            self._stop.wait(min(left, HOLD_SECONDS / 8))
            self.extend()

    def extend(self) -> None:
        """Extend messages that would soon be visible."""
        now = self._clock.monotonic()
        due = [key for key, (_, deadline) in self._handles.items() if deadline - now < HOLD_SECONDS / 2]
        for key in self._change(due, HOLD_SECONDS):
            self._handles[key] = self._handles[key][0], now + HOLD_SECONDS

    def handle(self, message_id: str) -> str:
        """The newest receipt handle of a message."""
        return self._handles[message_id][0]

    def forget(self, message_ids: Iterable[str]) -> None:
        """Forget deleted messages."""
        for message_id in message_ids:
            self._handles.pop(message_id, None)

    def release(self) -> int:
        """Make held messages visible again. Returns how many stay hidden, for up to `HOLD_SECONDS`."""
        kept = list(self._handles)
        released = self._change(kept, 0)
        self._handles.clear()
        return len(kept) - len(released)

    def _change(self, message_ids: Sequence[str], seconds: int) -> list[str]:
        """Change the visibility of messages. Returns those changed; `problem` has the error of the others."""
        changed: list[str] = []
        for start in range(0, len(message_ids), BATCH_ENTRIES):
            batch = message_ids[start : start + BATCH_ENTRIES]
            changes = [(self._handles[key][0], seconds) for key in batch]
            try:
                failed = self._queue.sqs.change_visibility(self._queue.url, changes).failed
            except SQSError as error:
                self.problem = error
                break
            for why in failed.values():
                self.problem = why
            changed += [key for position, key in enumerate(batch) if position not in failed]
        return changed


@dataclass
class Session:
    """One search of a dead-letter queue. The command's thread.

    Attributes:
        limit: the maximum number of selected letters.
        stop: set at Ctrl-C and SIGTERM.
        clock_offset: by how many seconds this machine's clock is ahead of SQS's, which determines ages.
        began: in seconds since the epoch, by SQS's clock.
        others: number of letters from other queues, which were ignored.
        later: number of letters that were sent after the beginning, and ignored.
    """

    place: Place
    selection: Selection
    limit: int | None
    held: HeldMessages
    stop: threading.Event
    clock_offset: float = 0.0
    began: float = math.inf
    others: int = field(default=0, init=False)
    later: int = field(default=0, init=False)
    _found: set[str] = field(default_factory=set, init=False)

    def now(self) -> float:
        """Seconds since the epoch, by SQS's clock."""
        return SYSTEM_CLOCK.wall() - self.clock_offset

    def missing(self) -> list[str]:
        """The selected ids that matched no letter."""
        return [each for each in self.selection.ids if each not in self._found]

    def number_elsewhere(self) -> int:
        """Number of earlier messages that somebody else has, or had; 0 if unknown.

        Call it before `held.release()`. SQS's counts lag behind deletions.
        """
        held, letters = self.held, self.place.letters
        # Visible messages that were not received have been given back since, or wait behind others of a FIFO
        # group.
        given_back = [VISIBLE] if held.is_complete and not letters.fifo else []
        number = count_if_known(letters, HIDDEN, *given_back) or 0
        left = number - (len(held) if held.is_complete else held.seen)
        return max(0, min(left, self.place.number_before - held.seen))

    @cached_property
    def behind(self) -> int:
        """Number of messages that SQS does not hand out, behind others of their FIFO group; 0 if unknown.

        Read it before `held.release()`.
        """
        if not (self.place.letters.fifo and self.held.is_complete):
            return 0
        left = count_if_known(self.place.letters, VISIBLE) or 0
        return max(0, min(left, self.place.number_before - self.held.seen))

    def agrees(self, question: str) -> bool:
        """Ask a question, and keep messages hidden meanwhile. No answer, or Ctrl-C, means no."""
        say(f"{question} [y/N]: ", nl=False, err=True)
        stdin: TextIO | None = sys.stdin  # `None` if it is closed
        while stdin and not (self.stop.is_set() or select.select([stdin], [], [], ANSWER_SECONDS)[0]):
            self.held.extend()
        answer = "" if stdin is None or self.stop.is_set() else stdin.readline().strip().lower()
        if not answer:
            say(err=True)
        return answer in {"y", "yes"}

    def letters(self) -> Iterator[Letter]:
        """Yield the selected letters, one by one."""
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Letter]]:
        """Yield the selected letters as they are received.

        Ends after a few receives without a letter from before the beginning: letters that were sent back may
        fail, and be here again at once.
        """
        left = sys.maxsize if self.limit is None else self.limit
        without = 0
        readable = self.place.context.options.readable_payloads
        with self._progress() as advance:
            for messages in self.held.batches():
                read = [read_letter(self.place.letters, message, readable) for message in messages]
                letters = [letter for letter in read if self._is_earlier(letter)]
                self.later += len(read) - len(letters)
                meant = self._select(letters)[:left]
                self._found.update(*map(self.selection.ids_of, meant))
                if meant:
                    yield meant
                advance(len(messages))
                left -= len(meant)
                without = 0 if letters else without + 1
                if left <= 0 or without == MAX_REPEATS or self._has_all(meant):
                    return

    def _select(self, letters: Sequence[Letter]) -> list[Letter]:
        now = self.now()
        self.others += sum(not self.selection.is_of_source(letter) for letter in letters)
        return [letter for letter in letters if self.selection.matches(letter, now)]

    def _is_earlier(self, letter: Letter) -> bool:
        """Returns whether it was sent before the beginning, or is the first letter with a selected id."""
        return letter.sent < self.began or bool(self.selection.ids_of(letter) - self._found)

    def _has_all(self, meant: Sequence[Letter]) -> bool:
        """Returns whether only one letter was asked for, by its whole id, and it is found."""
        ids = self.selection.ids
        return len(ids) == 1 and any(letter.id in ids for letter in meant)

    @contextmanager
    def _progress(self) -> Iterator[Callable[[int], None]]:
        """A progress bar on a terminal. Its length is approximate, like SQS's counts."""
        if not sys.stderr.isatty():
            yield lambda _number: None
            return
        length = count_if_known(self.place.letters, VISIBLE) or 1
        with click.progressbar(length=length, file=sys.stderr, show_pos=True) as bar:
            yield bar.update


@contextmanager
def session_of(place: Place, selection: Selection, limit: int | None) -> Iterator[Session]:
    """Open a session. Letters that were neither deleted nor sent back are visible again at its end."""
    if place.moves_on:
        say(
            f"Warning: dead-letter queue {place.letters.name!r} has a redrive policy of its own, and each "
            "look at a message counts as a receive: messages may move on.",
            err=True,
        )
    with stop_on_signals(second_raises=True) as stop:
        held = HeldMessages(place.letters, SYSTEM_CLOCK, stop)
        ahead = clock_offset(place.letters.sqs.location().endpoint) or 0.0
        ahead = ahead if abs(ahead) > OFFSET_ERROR_SECONDS else 0.0
        began = SYSTEM_CLOCK.wall() - ahead + (OFFSET_ERROR_SECONDS if ahead else 0.0)
        session = Session(place, selection, limit, held, stop, ahead, began)
        with given_back(session):
            yield session


@contextmanager
def given_back(session: Session) -> Iterator[None]:
    """Give back held messages at the end, and say what was left out."""
    try:
        yield
        elsewhere, behind = session.number_elsewhere(), session.behind
    finally:
        release(session.held)
    for sentence in _left_out(session, elsewhere, behind):
        say(f"Left out: {sentence}", err=True)


def release(held: HeldMessages) -> None:
    """Make held messages visible again, and say which could not be."""
    if left := held.release():
        say(
            f"{counted(left, 'message')} could not be given back, to be visible again in "
            f"{HOLD_SECONDS} s: {held.problem}",
            err=True,
        )


def _left_out(session: Session, elsewhere: int, behind: int) -> Iterator[str]:
    name = session.place.letters.name
    if elsewhere:
        yield (
            f"{counted(elsewhere, 'message')} of {name!r} that somebody else has received: another command, "
            f"a worker or a Lambda function. A command gives them back at its end, or {HOLD_SECONDS} s after "
            "it was killed."
        )
    if behind:
        yield (
            f"{counted(behind, 'message')} of {name!r} behind others of their FIFO group: SQS gives no more "
            "of a group while its first ones are hidden. Send back or delete the first ones, too: name "
            "their IDs, or say --all without filters."
        )
    if session.later:
        yield f"{counted(session.later, 'dead letter')} that came after this command began."
    if session.others:
        yield f"{counted(session.others, 'dead letter')} of other queues; --any-source takes them, too."
