"""Dead letters sent back in batches, deleted, or moved by SQS itself. Sending comes before deleting."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import click

from celery_sqs_visibility.aws.port import MoveTask, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.delivery.receive.content import DecodedMessage
from celery_sqs_visibility.delivery.settle.dead_letters import of_the_sender
from celery_sqs_visibility.errors import (
    ObjectDoesNotExistError,
    RefusedError,
    SQSError,
    TooLargeError,
    UnavailableError,
)
from celery_sqs_visibility.operate.aws_commands import aws_command
from celery_sqs_visibility.operate.dead_letters.letter import Letter
from celery_sqs_visibility.operate.dead_letters.session import HeldMessages, Place
from celery_sqs_visibility.operate.invocation import PASSING, CommandError, counted, with_retries
from celery_sqs_visibility.policy.clock import sleep
from celery_sqs_visibility.policy.message_limits import message_bytes
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES
from celery_sqs_visibility.transport.codec import encode_payload
from celery_sqs_visibility.transport.encoding import DEFAULT_GROUP

#: Error codes of endpoints that do not know an action; the numbers are HTTP statuses.
NOT_KNOWN: Final = frozenset(
    ("404", "405", "500", "501", "InvalidAction", "NotImplemented", "UnknownOperationException")
)

#: Seconds between two requests for the progress.
LOOK_SECONDS: Final = 2.0

#: How often the list is read while it lacks the task.
MAX_LOOKS_WITHOUT_TASK: Final = 15


@dataclass
class Outcome:
    """Results for letters that were sent back or deleted.

    Attributes:
        done: ids of letters that were sent back, or deleted.
        task_ids: ids of their tasks, in the same order; `None` if unknown.
        sent_to: number of letters sent back to each queue, by Celery's name.
        failed: reasons by the ids of the others.
    """

    done: list[str] = field(default_factory=list)
    task_ids: list[str | None] = field(default_factory=list)
    sent_to: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, letters: Iterable[Letter]) -> None:
        """Add letters that were sent back, or deleted."""
        for letter in letters:
            self.done.append(letter.id)
            self.task_ids.append(letter.task_id)


@dataclass
class Moves:
    """Moves letters one batch after the other. The command's thread.

    Attributes:
        stop: when set, ends the moves after the current batch.
        per_second: the rate limit, in messages.
        agrees: asks, once for each queue other than the source, whether letters may go there.
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
            # To a FIFO queue one at a time: SendMessageBatch may refuse one, and accept those behind it.
            size = 1 if target.fifo else self._batch_size()
            for batch in batches_of([message for _, message in pairs], size):
                self._paced([pairs[position] for position in batch], target)

    def delete(self, letters: Sequence[Letter]) -> None:
        """Delete up to ten letters for good. Payloads in S3 are kept: messages sent back may need them.

        Raises:
            SQSError: a whole request failed.
        """
        self.outcome.add(self._delete(letters, "{}"))

    def _target(self, letter: Letter) -> Queue | None:
        """The queue that the letter goes to; `None` if it can't go, with the reason in the outcome."""
        try:
            target = self.place.target_of(letter)
        except RefusedError as error:
            reason: str | None = str(error)
        else:
            reason = self._payload_problem(letter) or self._target_problem(target)
            if reason is None:
                return target
        self.outcome.failed[letter.id] = str(reason)
        return None

    def _target_problem(self, target: Queue) -> str | None:
        """Why nothing may be sent to that queue, which anybody who can send dead letters may have named."""
        if target.url == self.place.source.url:
            return None
        if target.url not in self._agreed:
            self._agreed[target.url] = self.agrees(target)
        if self._agreed[target.url]:
            return None
        return f"it names queue {target.name!r}, to which nothing was agreed to be sent; --yes agrees"

    def _batch_size(self) -> int:
        return BATCH_ENTRIES if self.per_second is None else max(1, min(BATCH_ENTRIES, int(self.per_second)))

    def _paced(self, pairs: Sequence[tuple[Letter, OutgoingMessage]], target: Queue) -> None:
        if self.stop.is_set() or self._waits_behind_another(pairs[0], target):
            return
        self._send(pairs, target)
        if self.per_second is not None:
            self.held.wait(len(pairs) / self.per_second)

    def _waits_behind_another(self, pair: tuple[Letter, OutgoingMessage], target: Queue) -> bool:
        """Returns whether an earlier message of the same FIFO group could not be sent back."""
        letter, message = pair
        if (target.url, message.group_id) not in self._closed_groups:
            return False
        self.outcome.failed[letter.id] = "an earlier dead letter of its message group could not be sent back"
        return True

    def _send(self, pairs: Sequence[tuple[Letter, OutgoingMessage]], target: Queue) -> None:
        messages = [message for _, message in pairs]
        failed = with_retries(partial(target.sqs.send_batch, target.url, messages)).failed
        for position, error in failed.items():
            letter, message = pairs[position]
            self.outcome.failed[letter.id] = str(error)
            if target.fifo:
                self._closed_groups.add((target.url, message.group_id))
        sent = [letter for position, (letter, _) in enumerate(pairs) if position not in failed]
        self.outcome.add(sent)
        self.outcome.sent_to[target.name] += len(sent)
        if sent:
            reason = (
                "it was sent back and is still a dead letter, since it could not be deleted: {}. Delete it"
            )
            self._delete(sent, reason)

    def _delete(self, letters: Sequence[Letter], sentence: str) -> list[Letter]:
        """Delete up to ten letters. Returns those that were deleted."""
        queue = self.place.letters
        handles = [self.held.handle(letter.id) for letter in letters]
        try:
            failed = with_retries(partial(queue.sqs.delete, queue.url, handles), PASSING).failed
        except SQSError as error:
            self.outcome.failed |= {letter.id: sentence.format(error) for letter in letters}
            raise
        for position, why in failed.items():
            self.outcome.failed[letters[position].id] = sentence.format(why)
        deleted = [letter for position, letter in enumerate(letters) if position not in failed]
        self.held.forget(letter.id for letter in deleted)
        return deleted

    def _payload_problem(self, letter: Letter) -> str | None:
        """Why the letter's task could not run: its payload is gone."""
        if not isinstance(letter.content, PayloadPointer) or self.payloads is None:
            return None
        try:
            self.payloads.objects.get(
                letter.content.key, max_bytes=0
            )  # only asks for the object, without reading it
        except ObjectDoesNotExistError:
            return f"its payload {letter.content} is gone, so its task could not run. Delete it"
        except (TooLargeError, SQSError):
            return None  # the payload exists, or that is unknown
        return None


def message_to_send_back(letter: Letter, *, fifo: bool) -> OutgoingMessage:
    """The message for the source queue, with the sender's attributes and group.

    Its deduplication id is new, because a FIFO queue drops an id that it has seen in the last five minutes.
    """
    return OutgoingMessage(
        body=_body(letter),
        attributes=of_the_sender(letter.attributes),
        group_id=letter.system.get("MessageGroupId") or (DEFAULT_GROUP if fifo else None),
        deduplication_id=str(uuid.uuid4()) if fifo else None,
    )


def _body(letter: Letter) -> str:
    """The body. In a copy that waited for an ETA, the header `retries` is reset."""
    content = letter.content
    if isinstance(content, DecodedMessage) and (content.payload.get("headers") or {}).get("retries"):
        payload = content.payload
        return encode_payload({**payload, "headers": {**payload["headers"], "retries": 0}})
    return letter.message["Body"]


def batches_of(messages: Sequence[OutgoingMessage], size: int = BATCH_ENTRIES) -> Iterator[range]:
    """Positions of messages that fit into one SendMessageBatch, in order."""
    begin, bytes_ = 0, 0
    for position, message in enumerate(messages):
        own = message_bytes(message.body, message.attributes)
        if position > begin and (position - begin == size or bytes_ + own > MESSAGE_BYTES):
            yield range(begin, position)
            begin, bytes_ = position, 0
        bytes_ += own
    if begin < len(messages):
        yield range(begin, len(messages))


def move_all(place: Place, per_second: float | None) -> dict[str, Any]:
    """Let SQS move all messages, and wait for the end. Ctrl-C only ends the wait.

    Raises:
        CommandError: SQS does not move these messages, or has not moved all of them.
    """
    if not place.is_of_policy:
        raise CommandError(
            f"SQS moves messages only from a queue that a redrive policy names, and that of queue "
            f"{place.source.name!r} does not name {place.letters.name!r}: leave out --native"
        )
    if per_second is not None and per_second < 1:
        raise CommandError(f"SQS moves at least one message a second, and --rate is {per_second:g}")
    pace = None if per_second is None else min(int(per_second), 500)  # API_StartMessageMoveTask's maximum
    source = place.letters.arn()
    before = _start(place, source, pace)
    try:
        task = _watched(place.letters, source, before)
    except KeyboardInterrupt:
        raise CommandError("SQS goes on moving the messages; this command no longer watches it") from None
    if task.status != "COMPLETED":
        raise CommandError(
            f"SQS moved {counted(task.moved, 'message')}, and then: {task.status}, "
            f"{task.failure or 'no reason given'}. The others are still dead letters"
        )
    return {"moved": task.moved, "to": place.source.name}


def _start(place: Place, source_arn: str, pace: int | None) -> MoveTask | None:
    """Start the task. Returns the previous one, if any."""
    try:
        before = place.letters.sqs.latest_move_task(source_arn)
        place.letters.sqs.start_move_task(source_arn, place.source.arn(), pace)
    except SQSError as error:
        if error.code not in NOT_KNOWN:
            raise
        raise CommandError(
            "the endpoint seems to have no StartMessageMoveTask, as some emulators: leave out --native: "
            f"{error}"
        ) from error
    return before


def _watched(queue: Queue, source_arn: str, before: MoveTask | None) -> MoveTask:
    """Wait for the end of the move task after `before`. Returns it."""
    former, without = before and before.started, 0
    while without < MAX_LOOKS_WITHOUT_TASK:
        try:
            task = queue.sqs.latest_move_task(source_arn)
        except UnavailableError:
            task = MoveTask("RUNNING")
        if task is None or (former is not None and task.started == former):
            without += 1
        elif task.status not in {"RUNNING", "CANCELLING"}:
            return task
        elif sys.stderr.isatty():
            click.echo(f"\r{task.moved} of {task.to_move or '?'} moved", err=True, nl=False)
        sleep(LOOK_SECONDS)
    raise CommandError(
        f"SQS has begun to move the messages of {queue.name!r}, and does not list the task: look at "
        f"`{aws_command('sqs', 'list-message-move-tasks', queue.sqs.location(), source_arn=source_arn)}`"
    )
