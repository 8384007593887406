"""Sends dead letters back, and deletes them; in batches, and never deleted before they are sent."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.errors import (
    ObjectDoesNotExistError,
    QueueDoesNotExistError,
    SQSError,
    TooLargeError,
)
from celery_sqs_visibility.operate.dead_letters.held import HeldMessages
from celery_sqs_visibility.operate.dead_letters.letter import Letter
from celery_sqs_visibility.operate.dead_letters.places import Place
from celery_sqs_visibility.operate.dead_letters.resend import batches_of, message_to_send_back
from celery_sqs_visibility.operate.patience import PASSING, patiently
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: Of a letter that was sent, and whose deletion failed.
TWICE: Final = "it was sent back and is still a dead letter, since it could not be deleted: {}. Delete it"

#: Of a letter that names a queue to which nothing is sent.
NOT_AGREED: Final = "it names queue {!r}, to which nothing was agreed to be sent; --yes agrees"


@dataclass
class Outcome:
    """What became of letters.

    Attributes:
        done: ids of those that were sent back, or deleted.
        sent_to: how many were sent back to each queue, by Celery's name.
        failed: ids of the others, with the reason.
    """

    done: list[str] = field(default_factory=list)
    sent_to: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class Moves:
    """Moves letters one batch after the other. The command's thread.

    Attributes:
        place: where the letters are, and go to.
        held: has their receipt handles.
        stop: no more batches are begun once it is set.
        payloads: the bucket of large messages.
        per_second: most messages a second; `None` is as fast as SQS answers.
        agrees: whether letters may go to another queue than the place's own; asked once for each.
    """

    place: Place
    held: HeldMessages
    stop: threading.Event
    payloads: PayloadStore | None = None
    per_second: float | None = None
    agrees: Callable[[Queue], bool] = lambda _target: True
    outcome: Outcome = field(default_factory=Outcome)
    _agreed: dict[str, bool] = field(default_factory=dict)  # by URL
    _closed_groups: set[tuple[str, str | None]] = field(default_factory=set)

    def send_back(self, letters: Sequence[Letter]) -> None:
        """Send letters to their queues, then delete them.

        Raises:
            SQSError: a whole request failed. Nothing of its batch is deleted.
        """
        by_target: defaultdict[Queue, list[tuple[Letter, OutgoingMessage]]] = defaultdict(list)
        for letter in letters:
            if (target := self._target(letter)) is not None:
                by_target[target].append((letter, message_to_send_back(letter, fifo=target.fifo)))
        for target, pairs in by_target.items():
            # Of a FIFO queue one at a time: SendMessageBatch may refuse one, and take those behind it.
            most = 1 if target.fifo else self._most()
            for batch in batches_of([message for _, message in pairs], most):
                self._paced([pairs[position] for position in batch], target)

    def delete(self, letters: Sequence[Letter]) -> None:
        """Delete up to ten letters for good. A payload in S3 stays: a message that was sent back may need it.

        Raises:
            SQSError: a whole request failed.
        """
        self.outcome.done += [letter.id for letter in self._delete(letters, "{}")]

    def _target(self, letter: Letter) -> Queue | None:
        """Where the letter goes; `None` where it stays, for the reason that the outcome has."""
        try:
            target = self.place.target_of(letter)
        except QueueDoesNotExistError as error:
            reason: str | None = str(error)
        else:
            reason = self._why_not(letter) or self._why_not_to(target)
            if reason is None:
                return target
        self.outcome.failed[letter.id] = str(reason)
        return None

    def _why_not_to(self, target: Queue) -> str | None:
        """Why nothing goes there: anybody who may send to the dead-letter queue may name any queue."""
        if target.url == self.place.source.url:
            return None
        if target.url not in self._agreed:
            self._agreed[target.url] = self.agrees(target)
        return None if self._agreed[target.url] else NOT_AGREED.format(target.name)

    def _most(self) -> int:
        return BATCH_ENTRIES if self.per_second is None else max(1, min(BATCH_ENTRIES, int(self.per_second)))

    def _paced(self, pairs: Sequence[tuple[Letter, OutgoingMessage]], target: Queue) -> None:
        if self.stop.is_set() or self._waits_behind_another(pairs[0], target):
            return
        self._send(pairs, target)
        if self.per_second is not None:
            self.held.wait(len(pairs) / self.per_second)

    def _waits_behind_another(self, pair: tuple[Letter, OutgoingMessage], target: Queue) -> bool:
        """Whether an earlier message of a FIFO queue's group could not be sent back."""
        letter, message = pair
        if (target.url, message.group_id) not in self._closed_groups:
            return False
        self.outcome.failed[letter.id] = "an earlier dead letter of its message group could not be sent back"
        return True

    def _send(self, pairs: Sequence[tuple[Letter, OutgoingMessage]], target: Queue) -> None:
        messages = [message for _, message in pairs]
        failed = patiently(partial(target.sqs.send_batch, target.url, messages)).failed
        for position, error in failed.items():
            letter, message = pairs[position]
            self.outcome.failed[letter.id] = str(error)
            if target.fifo:
                self._closed_groups.add((target.url, message.group_id))
        sent = [letter for position, (letter, _) in enumerate(pairs) if position not in failed]
        self.outcome.done += [letter.id for letter in sent]
        self.outcome.sent_to[target.name] += len(sent)
        if sent:
            self._delete(sent, TWICE)

    def _delete(self, letters: Sequence[Letter], sentence: str) -> list[Letter]:
        """Delete up to ten letters; those that were."""
        queue = self.place.letters
        handles = [self.held.handle(letter.id) for letter in letters]
        try:
            failed = patiently(partial(queue.sqs.delete, queue.url, handles), PASSING).failed
        except SQSError as error:
            self.outcome.failed |= {letter.id: sentence.format(error) for letter in letters}
            raise
        for position, why in failed.items():
            self.outcome.failed[letters[position].id] = sentence.format(why)
        deleted = [letter for position, letter in enumerate(letters) if position not in failed]
        self.held.forget(letter.id for letter in deleted)
        return deleted

    def _why_not(self, letter: Letter) -> str | None:
        """Why its task could not run: its payload is gone."""
        if not isinstance(letter.content, PayloadPointer) or self.payloads is None:
            return None
        try:
            self.payloads.objects.get(letter.content.key, most=0)  # asks for the object, and reads nothing
        except ObjectDoesNotExistError:
            return f"its payload {letter.content} is gone, so its task could not run. Delete it"
        except (TooLargeError, SQSError):
            return None  # it is there, or nobody may say
        return None
