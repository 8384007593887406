"""SQS and S3 in memory, for tests without a server."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.fake_queue import FakeQueue, LateChange, Now, StoredMessage
from celery_sqs_visibility.aws.fake_rules import (
    DEFAULTS,
    refused,
    require_attribute_names,
    require_batch,
    require_batch_size,
    require_creation,
    require_message,
    require_range,
    require_settings,
)
from celery_sqs_visibility.aws.object_store import ObjectStore, no_op
from celery_sqs_visibility.aws.port import (
    SQS,
    BatchResult,
    Location,
    MoveTask,
    OutgoingMessage,
    ReceivedMessage,
    ReceiveOptions,
)
from celery_sqs_visibility.errors import (
    ObjectDoesNotExistError,
    QueueDoesNotExistError,
    SQSError,
    ThrottledError,
    TooLargeError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, SystemClock
from celery_sqs_visibility.policy.message_limits import is_selected
from celery_sqs_visibility.policy.queue_names import KEY
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_sqs_visibility.policy.clock import Clock

ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"
ENDPOINT: Final = f"memory://{REGION}"

#: Seconds between two purges of a queue, and until a deleted queue's name can be used again.
MINUTE_SECONDS: Final = 60


class FakeSQS(SQS):
    """SQS in this process's memory. Usable from any thread.

    Give it to code that takes an `SQS`, such as `Queues`. Set the clock, let calls fail, look at `calls`::

        sqs = FakeSQS(clock)
        queue = Queues(sqs).find_or_create("orders")
        sqs.send(queue.url, OutgoingMessage("a task"))
        sqs.fail_next("DeleteMessageBatch", ThrottledError("slow down"))

    It answers as SQS does, as far as that is documented or recorded: docs/fidelity.md lists behaviours and
    sources. Open questions are arguments, which are also attributes that can be changed at any time. It
    does not simulate in-flight limits, permissions and encryption, nor standard queues that withhold messages
    or deliver one twice.

    Args:
        clock: the time. Long polls wait only with a `SystemClock`, because nobody can advance another clock
            while waiting for it.
        late_change: the effect of a visibility change after the visibility timeout.
        late_fifo_change: the same for FIFO queues.
        old_handle_deletes: lets an old handle delete a message in a standard queue that was received again.
            The answer is a success either way.
        names_rest: refuses to create a queue within 60 seconds after one of that name was deleted.

    Attributes:
        calls: every call so far, as the API action and the arguments by the port's names.
        queues: the queues by URL.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        late_change: LateChange = LateChange.DOES_NOTHING,
        late_fifo_change: LateChange = LateChange.IS_REFUSED,
        old_handle_deletes: bool = False,
        names_rest: bool = True,
    ) -> None:
        self._clock = clock
        self._waits = isinstance(clock, SystemClock)
        self._changed = threading.Condition()  # guards everything below
        self.queues: dict[str, FakeQueue] = {}
        self._deleted: dict[str, float] = {}  # URL to monotonic instant
        self._purged: dict[str, float] = {}  # likewise
        self._moves: dict[str, MoveTask] = {}  # the latest by source ARN
        self._failures: dict[str, deque[tuple[SQSError, int | None, bool]]] = defaultdict(deque)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.late_change = late_change
        self.late_fifo_change = late_fifo_change
        self.old_handle_deletes = old_handle_deletes
        self.names_rest = names_rest

    def fail_next(
        self, action: str, error: SQSError, position: int | None = None, *, carried_out: bool = False
    ) -> None:
        """Let the next call of an API action fail, without any other effect. Repeated calls add up.

        Args:
            action: for example `"DeleteMessageBatch"`.
            error: the error to raise.
            position: fail only this entry of a batch.
            carried_out: raise the error after the call has taken effect, as if the answer was lost.
        """
        with self._changed:
            self._failures[action].append((error, position, carried_out))

    def location(self) -> Location:
        return Location(REGION, ENDPOINT)

    def reach(self) -> None:
        """Succeed unless `fail_next("connect", ...)` was called. Not in `calls`, as it makes no request."""
        with self._changed:
            if self._failures["connect"]:
                raise self._failures["connect"].popleft()[0]

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        action = "ReceiveMessage"
        arguments = {"queue_url": queue_url, "max_messages": max_messages, "wait": wait, "options": options}
        with self._call(action, **arguments):
            require_range(action, "MaxNumberOfMessages", max_messages, 1, BATCH_ENTRIES)
            require_range(action, "WaitTimeSeconds", wait, 0, WAIT_TIME_SECONDS)
            timeout = options.visibility_timeout or 0
            require_range(action, "VisibilityTimeout", timeout, 0, VISIBILITY_HORIZON_SECONDS)
            if options.attempt_id is not None and not self._queue(action, queue_url).fifo:
                raise refused(action, "Only a FIFO queue takes a ReceiveRequestAttemptId.")
            until = self._clock.monotonic() + wait
            while True:
                queue, now = self._queue(action, queue_url), self._now()
                messages = self._take(queue, max_messages, options, now)
                left = until - now.monotonic
                if messages or left <= 0 or not self._waits:
                    return [as_received(message, options) for message in messages]
                self._changed.wait(min(left, queue.next_change(now)))

    def _take(self, queue: FakeQueue, limit: int, options: ReceiveOptions, now: Now) -> list[StoredMessage]:
        received, dead = queue.receive(limit, options.visibility_timeout, now, options.attempt_id)
        redrive = queue.redrive
        targets = [q for q in self.queues.values() if redrive and q.arn == redrive.dead_letter_arn]
        for message in dead if targets else ():
            targets[0].add_dead_letter(message, queue.arn, now)
            self._changed.notify_all()
        return received

    def discard_idle_connections(self) -> None:
        pass

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        action = "DeleteMessageBatch"
        with self._call(action, queue_url=queue_url, handles=list(handles)) as failed:
            queue, now = self._queue(action, queue_url), self._now()
            by_any = self.old_handle_deletes
            return self._batch(
                action, handles, lambda handle: queue.delete(handle, now, by_any=by_any), failed
            )

    def change_visibility(
        self,
        queue_url: str,
        changes: Sequence[tuple[str, int]],
        *,
        urgent: bool = False,  # noqa: ARG002 - the port's signature
    ) -> BatchResult:
        action = "ChangeMessageVisibilityBatch"
        with self._call(action, queue_url=queue_url, changes=list(changes)) as failed:
            queue, now = self._queue(action, queue_url), self._now()
            late = self.late_fifo_change if queue.fifo else self.late_change
            return self._batch(
                action, changes, lambda pair: queue.change_visibility(pair[0], pair[1], now, late), failed
            )

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        with self._call("SendMessage", queue_url=queue_url, message=message):
            queue = self._queue("SendMessage", queue_url)
            require_message("SendMessage", queue.attributes, message)
            return queue.send(message, self._now())

    def send_batch(
        self,
        queue_url: str,
        messages: Sequence[OutgoingMessage],
        *,
        urgent: bool = False,  # noqa: ARG002 - it answers at once
    ) -> BatchResult:
        action = "SendMessageBatch"
        with self._call(action, queue_url=queue_url, messages=list(messages)) as failed:
            queue, now = self._queue(action, queue_url), self._now()
            require_batch(action, queue.attributes, messages)
            successful: list[dict[str, str]] = []

            def send(entry: tuple[int, OutgoingMessage]) -> None:
                require_message(action, queue.attributes, entry[1])
                successful.append({"Id": str(entry[0]), "MessageId": queue.send(entry[1], now)})

            return BatchResult(
                self._batch(action, list(enumerate(messages)), send, failed).failed, successful
            )

    def queue_url(self, name: str, owner: str | None = None) -> str:
        with self._call("GetQueueUrl", name=name, owner=owner):
            if owner not in {None, ACCOUNT}:
                raise _no_queue("GetQueueUrl", name)
            return self._queue("GetQueueUrl", _url(name)).url

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        action = "CreateQueue"
        with self._call(action, name=name, attributes=dict(attributes), tags=dict(tags)):
            require_creation(action, name, attributes)
            deleted = self._deleted.get(_url(name)) if self.names_rest else None
            sentence = (
                f"You must wait {MINUTE_SECONDS} seconds after deleting a queue before you can create "
                "another with the same name."
            )
            self._require_minute(deleted, action, sentence, "QueueDeletedRecently")
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
            queue = FakeQueue(_url(name), arn, dict(attributes), tags=dict(tags))
            return self.queues.setdefault(_url(name), queue).url

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        with self._call("GetQueueAttributes", queue_url=queue_url, names=list(names)):
            queue = self._queue("GetQueueAttributes", queue_url)
            require_attribute_names("GetQueueAttributes", names)
            encrypted = {"SqsManagedSseEnabled": "false"} if queue.attributes.get(KEY) else {}
            given = {**DEFAULTS, **encrypted, **queue.attributes}
            every = {"QueueArn": queue.arn, **given, **queue.counts(self._now())}
            return {name: value for name, value in every.items() if name in names or "All" in names}

    def set_queue_attributes(self, queue_url: str, attributes: Mapping[str, str]) -> None:
        action = "SetQueueAttributes"
        with self._call(action, queue_url=queue_url, attributes=dict(attributes)):
            queue = self._queue(action, queue_url)
            require_settings(action, attributes, fifo=queue.fifo)
            queue.attributes.update(attributes)

    def purge(self, queue_url: str) -> None:
        action = "PurgeQueue"
        with self._call(action, queue_url=queue_url):
            queue = self._queue(action, queue_url)
            name = queue_url.rpartition("/")[2]
            sentence = f"Only one PurgeQueue operation on {name} is allowed every {MINUTE_SECONDS} seconds."
            self._require_minute(self._purged.get(queue_url), action, sentence, "PurgeQueueInProgress")
            self._purged[queue_url] = self._clock.monotonic()
            queue.purge()

    def delete_queue(self, queue_url: str) -> None:
        """DeleteQueue. Long polls that wait for the queue fail."""
        with self._call("DeleteQueue", queue_url=queue_url):
            del self.queues[self._queue("DeleteQueue", queue_url).url]
            self._deleted[queue_url] = self._clock.monotonic()
            self._purged.pop(queue_url, None)

    def list_queues(self, prefix: str) -> list[str]:
        with self._call("ListQueues", prefix=prefix):
            return [url for url in self.queues if url.rpartition("/")[2].startswith(prefix)]

    def queue_tags(self, queue_url: str) -> dict[str, str]:
        with self._call("ListQueueTags", queue_url=queue_url):
            return dict(self._queue("ListQueueTags", queue_url).tags)

    def tag_queue(self, queue_url: str, tags: Mapping[str, str]) -> None:
        with self._call("TagQueue", queue_url=queue_url, tags=dict(tags)):
            self._queue("TagQueue", queue_url).tags.update(tags)

    def untag_queue(self, queue_url: str, keys: Sequence[str]) -> None:
        with self._call("UntagQueue", queue_url=queue_url, keys=list(keys)):
            tags = self._queue("UntagQueue", queue_url).tags
            for key in keys:
                tags.pop(key, None)

    def start_move_task(self, source_arn: str, destination_arn: str, per_second: int | None = None) -> None:
        """StartMessageMoveTask. The task completes at once."""
        action = "StartMessageMoveTask"
        with self._call(action, source=source_arn, destination=destination_arn, per_second=per_second):
            by_arn = {queue.arn: queue for queue in self.queues.values()}
            for arn in (source_arn, destination_arn):
                if arn not in by_arn:
                    raise refused(action, f"There is no queue {arn!r}.", "ResourceNotFoundException")
            redrives = [queue.redrive for queue in by_arn.values()]
            if not any(redrive and redrive.dead_letter_arn == source_arn for redrive in redrives):
                raise refused(action, "Source queue must be configured as a Dead Letter Queue.")
            moved = by_arn[source_arn].move_to(by_arn[destination_arn], self._now())
            self._moves[source_arn] = MoveTask(
                "COMPLETED", moved, moved, started=int(self._clock.wall() * 1000)
            )

    def latest_move_task(self, source_arn: str) -> MoveTask | None:
        with self._call("ListMessageMoveTasks", source=source_arn):
            return self._moves.get(source_arn)

    @contextmanager
    def _call(self, action: str, **arguments: Any) -> Iterator[dict[int, SQSError]]:
        """Record a call and hold the lock during it. Raises or yields the errors of `fail_next`."""
        with self._changed:
            self.calls.append((action, arguments))
            failures = self._failures[action]
            error, position, carried_out = failures.popleft() if failures else (None, None, False)
            if error is not None and position is None and not carried_out:
                raise error
            yield {} if error is None or position is None else {position: error}
            self._changed.notify_all()
            if error is not None and carried_out:
                raise error

    def _batch(
        self, action: str, entries: Sequence[Any], act: Callable[[Any], object], failed: dict[int, SQSError]
    ) -> BatchResult:
        require_batch_size(action, len(entries))
        failed = {position: error for position, error in failed.items() if position < len(entries)}
        for position, entry in enumerate(entries):
            if position not in failed:
                try:
                    act(entry)
                except SQSError as error:
                    failed[position] = error
        return BatchResult(failed)

    def _queue(self, action: str, queue_url: str) -> FakeQueue:
        queue = self.queues.get(queue_url)
        if queue is None:
            raise _no_queue(action, queue_url)
        return queue

    def _require_minute(self, since: float | None, action: str, sentence: str, code: str) -> None:
        """Refuse a request within a minute after a monotonic instant."""
        if since is not None and self._clock.monotonic() - since < MINUTE_SECONDS:
            raise ThrottledError(sentence, code=code, action=action)

    def _now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall())


def _url(name: str) -> str:
    return f"{ENDPOINT}/{ACCOUNT}/{name}"


def _no_queue(action: str, queue: str) -> QueueDoesNotExistError:
    sentence = f"The specified queue does not exist: {queue}."
    return QueueDoesNotExistError(sentence, code="NonExistentQueue", action=action)


def as_received(message: StoredMessage, options: ReceiveOptions) -> ReceivedMessage:
    """Return a message as ReceiveMessage does."""
    answer = ReceivedMessage(
        MessageId=message.id,
        ReceiptHandle=message.handle or "",
        Body=message.body,
        MD5OfBody=hashlib.md5(message.body.encode(), usedforsecurity=False).hexdigest(),
    )
    if asked := options.system_attributes:
        system = message.system_attributes()
        answer["Attributes"] = {n: value for n, value in system.items() if n in asked or "All" in asked}
    named = message.message_attributes.items()
    if found := {n: value for n, value in named if is_selected(n, options.message_attributes)}:
        answer["MessageAttributes"] = found
    return answer


class FakeObjectStore(ObjectStore):
    """A bucket in this process's memory. Any thread.

    Attributes:
        objects: keys and their content.
        calls: the API actions called so far.
    """

    def __init__(self, bucket: str = "payloads") -> None:
        self.bucket = bucket
        self._failures: dict[str, deque[SQSError]] = defaultdict(deque)
        self.objects: dict[str, bytes] = {}
        self.calls: list[str] = []

    def fail_next(self, action: str, *errors: SQSError) -> None:
        """Let the next calls of an API action raise these errors, without any other effect."""
        self._failures[action] += errors

    def put(self, key: str, content: bytes) -> None:
        self._call("PutObject")
        self.objects[key] = content

    def get(self, key: str, max_bytes: int, progress: Callable[[], None] = no_op) -> bytes:
        self._call("GetObject")
        content = self.objects.get(key)
        if content is None:
            sentence = "GetObject was answered NoSuchKey: The specified key does not exist."
            raise ObjectDoesNotExistError(sentence, code="NoSuchKey", action="GetObject")
        if len(content) > max_bytes:
            raise TooLargeError(f"s3://{self.bucket}/{key} has {len(content):,} bytes")
        progress()
        return content

    def delete(self, keys: Sequence[str]) -> BatchResult:
        self._call("DeleteObjects")
        for key in keys:
            self.objects.pop(key, None)
        return BatchResult({})

    def _call(self, action: str) -> None:
        self.calls.append(action)
        if self._failures[action]:
            raise self._failures[action].popleft()
