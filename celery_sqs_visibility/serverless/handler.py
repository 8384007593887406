"""`lambda_handler`: the tasks of an app, from an SQS event source mapping of AWS Lambda."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import Hide, Why
from celery_sqs_visibility.delivery.arrivals import refuse, split, with_payload
from celery_sqs_visibility.delivery.awaited_payloads import fetch, settle_unfetched
from celery_sqs_visibility.delivery.event_log import listen
from celery_sqs_visibility.delivery.lease_table import open_lease_table
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, Records
from celery_sqs_visibility.delivery.receive.decoder import Decoder, ReadContent, ReadLater
from celery_sqs_visibility.errors import SQSError, UnavailableError, UnreadableError
from celery_sqs_visibility.events import (
    DeadLettered,
    DeliveryEnded,
    DeliveryEvent,
    Received,
    log_safely,
    subscribe,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.option_parsers import EMF
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.serverless.holder import ANSWER_SECONDS, InvocationHolder
from celery_sqs_visibility.serverless.runs import Runs
from celery_sqs_visibility.task.settings import refuse_on_other_tasks
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.bound_tasks import take_events

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore

logger = logging.getLogger(__name__)

#: An event that is never set: waiting for it is sleeping.
NEVER: Final = threading.Event()

SEVERAL_OF_A_GROUP: Final = (
    "%d messages of one group of FIFO queue %r came in one batch: when one of them fails those behind it "
    "come back unrun, which costs each an attempt; set the batch size of the event source mapping to 1"
)

SHUT_DOWN: Final = (
    "a task of queue %r ended with %r, which would end a worker: its message %r comes back, and the rest of "
    "the batch is given back"
)

#: The `eventSource` of SQS's records.
SOURCE: Final = "aws:sqs"

#: Members of a record, by their names in ReceiveMessage's answer.
MEMBERS: Final = {
    "messageId": "MessageId",
    "receiptHandle": "ReceiptHandle",
    "body": "Body",
    "md5OfBody": "MD5OfBody",
    "attributes": "Attributes",
}

#: The function's answer: the messages that Lambda must not delete.
Answer = dict[str, list[dict[str, str]]]


def lambda_handler(
    app: Celery[Any], *, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], object] = NEVER.wait
) -> Callable[[Any, Any], Answer]:
    """Make the handler of a Lambda function that runs the app's tasks. Makes no request.

    The event source mapping must have `ReportBatchItemFailures` as its function response type: without it
    Lambda deletes messages that failed.

    Args:
        app: an app on this package's broker transport.
        clock: for tests.
        sleep: for tests.

    Raises:
        ImproperlyConfigured: a setting of the app or of a task is wrong, or its broker transport is another.
        OptionError: a transport option is wrong.
    """
    app.loader.import_default_modules()
    app.finalize()
    with app.connection_for_read() as connection:
        if not isinstance(connection.transport, Transport):
            raise ImproperlyConfigured(
                "lambda_handler() runs tasks from SQS, and the app's broker transport is "
                f"{connection.transport.driver_name!r}: set broker_transport = 'celery_sqs_visibility'"
            )
        context: BrokerContext = connection.transport.context
    refuse_on_other_tasks(app.tasks.values())
    take_events(app, context)
    context.worker_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "lambda")
    listen()
    return Function(app, context, clock, sleep)


class Function:
    """A Lambda function, called for each invocation, one at a time in a process."""

    def __init__(
        self, app: Celery[Any], context: BrokerContext, clock: Clock, sleep: Callable[[float], object]
    ) -> None:
        self._context = context
        self._clock = clock
        self._sleep = sleep
        self._warned_of_groups = False
        self._holder = InvocationHolder(context, clock, open_lease_table(), sleep)
        self._runs = Runs(app, context)
        self._writes_metrics = EMF in (context.options.metrics or ())
        self._decoder = Decoder(context.decode_for_worker, self._holder, clock)

    def __call__(self, event: Any, invocation: Any) -> Answer:
        """Run the messages of an invocation, one after the other.

        Raises:
            ValueError: the event is not of an SQS event source mapping.
        """
        records = records_of(event)
        if not records:
            return {"batchItemFailures": []}
        until = self._clock.monotonic() + invocation.get_remaining_time_in_millis() / 1000
        self._holder.begin(until)
        with count_invocation(self._clock) if self._writes_metrics else nullcontext():
            self._run_all(self._decoded(records, until), until)
        failed = [record["messageId"] for record in records if record["messageId"] not in self._holder.done]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}

    def _decoded(self, records: list[dict[str, Any]], until: float) -> list[Any]:
        """The deliveries with their content and message, in the order in which they will run.

        A run's lease ends with the invocation.
        """
        queue = self._context.queues.by_arn(records[0]["eventSourceARN"])
        now = self._clock.monotonic()
        self._context.redrive.get(queue, now)
        listed_once = {record.get("receiptHandle"): message_of(record) for record in records}
        arrived = self._decoder.decode(queue, list(listed_once.values()), now, now)
        new = self._holder.hold([delivery for delivery, _, _ in arrived], until)
        arrived = [each for each in arrived if each[0] in new]
        if queue.fifo:
            self._warn_of_groups(queue, [delivery for delivery, _, _ in arrived])
            return arrived
        return sorted(arrived, key=lambda each: getattr(each[1], "eta", None) or 0.0)

    def _warn_of_groups(self, queue: Queue, deliveries: list[Delivery]) -> None:
        """Warn once that a failure costs the later messages of its group an attempt each."""
        most = max(Counter(delivery.facts.group for delivery in deliveries).values(), default=0)
        if most > 1 and not self._warned_of_groups:
            self._warned_of_groups = True
            logger.warning(SEVERAL_OF_A_GROUP, most, queue.name)

    def _run_all(self, arrived: list[Any], until: float) -> None:
        """Run messages until that instant. Give back the rest, and those after a failure in FIFO groups."""
        longest, left, stopped = 0.0, [], set()
        for delivery, content, message in arrived:
            began = self._clock.monotonic()
            group = delivery.facts.group if delivery.queue.fifo else None
            if group in stopped or began + longest + ANSWER_SECONDS > until:
                left.append(delivery)
                continue
            try:
                self._take(delivery, content, message, until)
            except SystemExit as error:
                logger.warning(SHUT_DOWN, delivery.queue.name, error, delivery.facts.message_id)
                delivery.settle(delivery.after_an_error())
                until = began  # start no more
            longest = max(longest, self._clock.monotonic() - began)
            if group is not None and delivery.facts.message_id not in self._holder.done:
                stopped.add(group)
        self._holder.release(left)

    def _take(self, delivery: Delivery, content: Any, message: Any, until: float) -> None:
        """Run a message, or settle it at once."""
        if isinstance(content, PayloadPointer):
            content = self._fetched(delivery, content, message)
            if content is None:
                return
        if isinstance(content, UnreadableError):
            refuse(delivery, content, message["Body"])
            return
        if isinstance(content, ReadLater):
            delivery.come_back(content.error)
            return
        if not isinstance(content, DecodedMessage):
            delivery.settle(split(delivery, content) if isinstance(content, Records) else content)
            return
        delivery.parkings = self._holder.parking.parks_until_eta(delivery, content)
        if (seconds := (content.eta or 0.0) - self._clock.wall()) > 0:
            waiting = self._holder.parking.waiting(delivery, content, message)
            if waiting is None and self._clock.monotonic() + seconds + ANSWER_SECONDS > until:
                waiting = Hide(math.ceil(seconds), Why.PARKED)
            if waiting is not None:
                delivery.settle(waiting)
                return
            self._sleep(seconds)
        self._runs.run(delivery, content.payload)

    def _fetched(
        self, delivery: Delivery, pointer: PayloadPointer, message: ReceivedMessage
    ) -> ReadContent | None:
        """The content of a message whose payload is in S3; `None` if S3 fails: then it is settled."""
        payloads = cast("PayloadStore", self._context.payloads)  # or there would be no pointer
        in_time = partial(self._refuse_late, delivery.deadline)
        try:
            get = partial(fetch, payloads.objects, pointer, in_time)
            whole: ReceivedMessage = {**message, "Body": self._holder.in_time(get, ANSWER_SECONDS)}
        except UnreadableError as error:
            return error
        except SQSError as error:
            settle_unfetched(delivery, pointer, error=str(error))
            return None
        return with_payload(delivery, self._decoder.content(delivery.queue, whole), message)

    def _refuse_late(self, deadline: float) -> None:
        if self._clock.monotonic() + ANSWER_SECONDS > deadline:
            raise UnavailableError(
                "GetObject did not end before the invocation", code="TooSlow", action="GetObject"
            )


def records_of(event: Any) -> list[dict[str, Any]]:
    """The records of an invocation.

    Raises:
        ValueError: the event is not from an SQS event source mapping.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list) or not all(_is_from_sqs(record) for record in records):
        got = (
            f"the keys {sorted(map(str, event))}" if isinstance(event, dict) else f"a {type(event).__name__}"
        )
        raise ValueError(
            f"expected the event of an SQS event source mapping, with 'Records' from {SOURCE!r}, got {got}"
        )
    return records


def message_of(record: Mapping[str, Any]) -> ReceivedMessage:
    """The record in the form of a message of ReceiveMessage's answer."""
    message: dict[str, Any] = {theirs: record[name] for name, theirs in MEMBERS.items() if name in record}
    attributes = record.get("messageAttributes") or {}
    message["MessageAttributes"] = {name: _attribute(value) for name, value in attributes.items()}
    return message  # type: ignore[return-value] # its keys are those of `MEMBERS`


def _is_from_sqs(record: Any) -> bool:
    return isinstance(record, dict) and record.get("eventSource") == SOURCE


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    attribute = {"DataType": value.get("dataType", "String")}
    if value.get("stringValue") is not None:
        attribute["StringValue"] = value["stringValue"]
    if value.get("binaryValue") is not None:
        attribute["BinaryValue"] = base64.b64decode(value["binaryValue"])
    return attribute


@contextmanager
def count_invocation(clock: Clock) -> Iterator[None]:
    """Count the outcomes of an invocation's messages, and log them by queue at the end. One thread.

    CloudWatch makes metrics of these lines.
    """
    from celery_sqs_visibility.operate.metrics import emf  # noqa: PLC0415 - if it is asked for

    emf.prepare_logger()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(name: str, event: DeliveryEvent | DeliveryEnded) -> None:
        counts[event.delivery.queue][name] += 1

    ends = [
        subscribe(partial(count, "MessagesReceived"), Received),
        subscribe(partial(count, "DeadLettered"), DeadLettered),
        subscribe(lambda event: count(f"Tasks{event.outcome.capitalize()}", event), DeliveryEnded),
    ]
    try:
        yield
    finally:
        for end in ends:
            end()
        for queue, values in counts.items():
            line = json.dumps(emf.document(queue, values, clock.wall()), separators=(",", ":"))
            log_safely(emf.LOGGER.info, line)
