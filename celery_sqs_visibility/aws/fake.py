"""SQS in memory, for tests: ours and those of who uses the package."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.fake_queue import FakeQueue, Message, Now
from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage, ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.errors import QueueDoesNotExistError, RequestRefusedError, SQSError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, SystemClock
from celery_sqs_visibility.policy.message_attributes import is_asked_for, legal, message_bytes
from celery_sqs_visibility.policy.quotas import (
    BATCH_ENTRIES,
    DELAY_SECONDS,
    MESSAGE_ATTRIBUTES,
    MESSAGE_BYTES,
    VISIBILITY_HORIZON,
    WAIT_TIME_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_sqs_visibility.policy.clock import Clock

ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|(?=.{1,80}$)[A-Za-z0-9_-]+\.fifo")


class FakeSQS:
    """The `SQS` of `aws.port` in this process's memory. Usable from any thread.

    It keeps Amazon's rules where emulators are known to differ: an old handle deletes nothing and extends
    nothing, and 12 hours count from the receive. A handle whose time has run out still extends, as long as
    nobody has received the message since. It does not know: retention, in-flight limits, PurgeQueue's and
    DeleteQueue's 60 seconds, permissions, encryption, tags.

    A long poll waits with a `SystemClock`; with any other clock it returns at once, since nobody can
    turn the hands of a clock while waiting for it.

    Args:
        clock: where time comes from.

    Attributes:
        calls: every call so far: the API action, and the arguments by the port's names.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._waits = isinstance(clock, SystemClock)
        self._changed = threading.Condition()  # guards everything below
        self._queues: dict[str, FakeQueue] = {}
        self._failures: dict[str, deque[tuple[SQSError, int | None]]] = defaultdict(deque)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def fail_next(self, action: str, error: SQSError, position: int | None = None) -> None:
        """Have the next call of an API action fail; several wait their turn.

        Args:
            action: for example `"DeleteMessageBatch"`.
            error: what to raise. Nothing else happens in that call.
            position: in a batch, fail only this entry; the others go ahead.
        """
        with self._changed:
            self._failures[action].append((error, position))

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """See `SQS.receive`."""
        action = "ReceiveMessage"
        timeout = options.visibility_timeout
        with self._changed:
            self._begin(action, queue_url=queue_url, max_messages=max_messages, wait=wait, options=options)
            _require_range(action, "MaxNumberOfMessages", max_messages, 1, BATCH_ENTRIES)
            _require_range(action, "WaitTimeSeconds", wait, 0, WAIT_TIME_SECONDS)
            _require_range(action, "VisibilityTimeout", timeout or 0, 0, VISIBILITY_HORIZON)
            if options.attempt_id is not None and not self._queue(action, queue_url).fifo:
                raise _refused(action, "Only a FIFO queue takes a ReceiveRequestAttemptId.")
            until = self._clock.monotonic() + wait
            while True:
                queue, now = self._queue(action, queue_url), self._now()
                messages = self._take(queue, max_messages, options, now)
                left = until - now.monotonic
                if messages or left <= 0 or not self._waits:
                    return [_as_received(message, options) for message in messages]
                self._changed.wait(min(left, queue.next_change(now)))

    def _take(self, queue: FakeQueue, limit: int, options: ReceiveOptions, now: Now) -> list[Message]:
        received, dead = queue.receive(limit, options.visibility_timeout, now, options.attempt_id)
        redrive = queue.redrive
        graves = [q for q in self._queues.values() if redrive and q.arn == redrive.dead_letter_arn]
        for message in dead if graves else ():
            graves[0].supersede(message, queue.arn, now)
            self._changed.notify_all()
        return received

    def discard_idle_connections(self) -> None:
        """There are none."""

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        """See `SQS.delete`."""
        with self._changed:
            failed = self._begin("DeleteMessageBatch", queue_url=queue_url, handles=list(handles))
            queue = self._queue("DeleteMessageBatch", queue_url)
            return self._batch("DeleteMessageBatch", handles, queue.delete, failed)

    def change_visibility(self, queue_url: str, changes: Sequence[tuple[str, int]]) -> BatchResult:
        """See `SQS.change_visibility`."""
        action = "ChangeMessageVisibilityBatch"
        with self._changed:
            failed = self._begin(action, queue_url=queue_url, changes=list(changes))
            queue, now = self._queue(action, queue_url), self._now()
            return self._batch(
                action, changes, lambda change: queue.change_visibility(change[0], change[1], now), failed
            )

    def _batch(
        self, action: str, entries: Sequence[Any], act: Callable[[Any], None], failed: dict[int, SQSError]
    ) -> BatchResult:
        if not entries:
            raise RequestRefusedError("The batch has no entries.", code="EmptyBatchRequest", action=action)
        if len(entries) > BATCH_ENTRIES:
            raise RequestRefusedError(
                f"The batch has {len(entries)} entries, more than {BATCH_ENTRIES}.",
                code="TooManyEntriesInBatchRequest",
                action=action,
            )
        failed = {position: error for position, error in failed.items() if position < len(entries)}
        for position, entry in enumerate(entries):
            if position not in failed:
                try:
                    act(entry)
                except SQSError as error:
                    failed[position] = error
        self._changed.notify_all()
        return BatchResult(failed)

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        """See `SQS.send`."""
        with self._changed:
            self._begin("SendMessage", queue_url=queue_url, message=message)
            queue = self._queue("SendMessage", queue_url)
            _check_outgoing(queue, message)
            message_id = queue.send(message, self._now())
            self._changed.notify_all()
            return message_id

    def send_batch(self, queue_url: str, messages: Sequence[OutgoingMessage]) -> BatchResult:
        """See `SQS.send_batch`."""
        action = "SendMessageBatch"
        with self._changed:
            failed = self._begin(action, queue_url=queue_url, messages=list(messages))
            queue, now = self._queue(action, queue_url), self._now()
            if sum(message_bytes(message.body, message.attributes) for message in messages) > MESSAGE_BYTES:
                raise _refused(action, f"A batch has {MESSAGE_BYTES} bytes at most.", "BatchRequestTooLong")

            def act(message: OutgoingMessage) -> None:
                _check_outgoing(queue, message)
                queue.send(message, now)

            return self._batch(action, messages, act, failed)

    def queue_url(self, name: str, owner: str | None = None) -> str:
        """See `SQS.queue_url`. There is one account, `ACCOUNT`."""
        url = _url(name)
        with self._changed:
            self._begin("GetQueueUrl", name=name, owner=owner)
            if owner not in {None, ACCOUNT}:
                raise _no_queue("GetQueueUrl", name)
            return self._queue("GetQueueUrl", url).url

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """See `SQS.create_queue`."""
        action = "CreateQueue"
        with self._changed:
            self._begin(action, name=name, attributes=dict(attributes), tags=dict(tags))
            if not _LEGAL_NAME.fullmatch(name) or name.endswith(".fifo") != ("FifoQueue" in attributes):
                raise _refused(action, f"{name!r} with {dict(attributes)} cannot be a queue's name.")
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
            queue = FakeQueue(name, _url(name), arn, dict(attributes))
            return self._queues.setdefault(queue.url, queue).url

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        """See `SQS.queue_attributes`."""
        with self._changed:
            self._begin("GetQueueAttributes", queue_url=queue_url, names=list(names))
            queue = self._queue("GetQueueAttributes", queue_url)
            defaults = {"VisibilityTimeout": "30", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0"}
            every = {"QueueArn": queue.arn, **defaults, **queue.attributes, **queue.counts(self._now())}
            return {name: value for name, value in every.items() if name in names or "All" in names}

    def purge(self, queue_url: str) -> None:
        """See `SQS.purge`."""
        with self._changed:
            self._begin("PurgeQueue", queue_url=queue_url)
            self._queue("PurgeQueue", queue_url).messages.clear()

    def delete_queue(self, queue_url: str) -> None:
        """See `SQS.delete_queue`. A long poll that waits there fails."""
        with self._changed:
            self._begin("DeleteQueue", queue_url=queue_url)
            del self._queues[self._queue("DeleteQueue", queue_url).url]
            self._changed.notify_all()

    def _begin(self, action: str, **arguments: Any) -> dict[int, SQSError]:
        """Record a call; raise or return what `fail_next` has in store for it."""
        self.calls.append((action, arguments))
        if not self._failures[action]:
            return {}
        error, position = self._failures[action].popleft()
        if position is None:
            raise error
        return {position: error}

    def _queue(self, action: str, queue_url: str) -> FakeQueue:
        queue = self._queues.get(queue_url)
        if queue is None:
            raise _no_queue(action, queue_url)
        return queue

    def _now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall())


def _url(name: str) -> str:
    return f"memory://{REGION}/{ACCOUNT}/{name}"


def _no_queue(action: str, queue: str) -> QueueDoesNotExistError:
    return QueueDoesNotExistError(
        f"The specified queue does not exist: {queue}.", code="QueueDoesNotExist", action=action
    )


def _refused(action: str, message: str, code: str = "InvalidParameterValue") -> RequestRefusedError:
    return RequestRefusedError(message, code=code, action=action)


def _require_range(action: str, name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise _refused(action, f"Value {value} for parameter {name} is invalid. It must be {low} to {high}.")


def _check_outgoing(queue: FakeQueue, message: OutgoingMessage) -> None:
    action = "SendMessage"
    if not message.body:
        raise _refused(action, "The request must contain the parameter MessageBody.", "MissingParameter")
    texts = {n: value["StringValue"] for n, value in message.attributes.items() if "StringValue" in value}
    for name, text in texts.items():
        if not text or legal(text) != text:
            raise _refused(action, f"The message attribute {name!r} is empty, or not all of it is XML.")
    if message_bytes(message.body, message.attributes) > MESSAGE_BYTES:
        raise _refused(
            action, f"One or more parameters are invalid. A message has {MESSAGE_BYTES} bytes at most."
        )
    if len(message.attributes) > MESSAGE_ATTRIBUTES:
        raise _refused(action, f"A message has {MESSAGE_ATTRIBUTES} attributes at most.")
    if message.delay is not None:
        _require_range(action, "DelaySeconds", message.delay, 0, 0 if queue.fifo else DELAY_SECONDS)
    if queue.fifo and message.group_id is None:
        raise _refused(action, "The request must contain the parameter MessageGroupId.", "MissingParameter")


def _as_received(message: Message, options: ReceiveOptions) -> ReceivedMessage:
    system = message.system_attributes()
    asked = system.keys() if "All" in options.system_attributes else options.system_attributes
    answer = ReceivedMessage(
        MessageId=message.id,
        ReceiptHandle=message.handle or "",
        Body=message.body,
        MD5OfBody=hashlib.md5(message.body.encode(), usedforsecurity=False).hexdigest(),
    )
    if options.system_attributes:
        answer["Attributes"] = {name: value for name, value in system.items() if name in asked}
    named = {
        name: value
        for name, value in message.message_attributes.items()
        if is_asked_for(name, options.message_attributes)
    }
    if named:
        answer["MessageAttributes"] = named
    return answer
