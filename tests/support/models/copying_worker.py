"""A worker whose requests the model of copies makes, and an SQS that denies a permission."""

from __future__ import annotations

from support import factories
from support.factories import EVERYTHING
from support.models.flights import Flight

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.settle.copies import CHECK_SECONDS
from celery_sqs_visibility.delivery.settlements import Split
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport.event_messages import EventMessages

EVENTS = EventMessages(EventRoutes([EventRoute("s3:*", "imports")]))

#: What SQS does not let workers do, by what is missing.
DENIED = {
    "none": (),
    "send": ("send", "send_batch"),
    "delete": ("delete",),
    "change": ("change_visibility",),
    "attributes": ("queue_attributes",),
}


class DenyingSQS(FakeSQS):
    """Denies one permission; `note` is told each message that a consumer has sent."""

    def __init__(self, clock, denied, note):
        super().__init__(clock)
        self._note = note
        for name in DENIED[denied]:
            setattr(self, name, self._deny)

    def _deny(self, *_args, **_options):
        raise AccessDeniedError("the permission is missing")

    def send(self, queue_url, message):
        message_id = super().send(queue_url, message)
        self._note(message)
        return message_id

    def send_batch(self, queue_url, messages, **options):
        result = super().send_batch(queue_url, messages, **options)
        for position, message in enumerate(messages):
            if position not in result.failed:
                self._note(message)
        return result


class Worker:
    """A worker: its consumer, the tasks that Celery has, and the requests with copies that are under way."""

    def __init__(self, queue, clock):
        self.queue, self.clock = queue, clock
        self.tasks, self.flights = [], []
        self.handles = set()
        self.stopped = self.was_stopped = False
        self.consumer = factories.queue_consumer(clock, open_message=EVENTS.decode, heartbeat_interval=40)
        self.consumer._receivers.add(_Receiver(queue), self._take)
        self.consumer.capacity.prefetch_count = 1000

    def _take(self, payload, _delivery):
        self.tasks.append((payload, self.consumer.ledger.get(payload["properties"]["delivery_tag"])))

    def receive(self):
        if self.stopped:
            return
        messages = self.queue.sqs.receive(self.queue.url, 10, 0, EVERYTHING)
        self.handles |= {each["ReceiptHandle"] for each in messages}
        self.consumer.capacity.hold(len(messages), queue="q", fifo=False)
        now = self.clock.monotonic()
        self.consumer._arrived(self.queue, messages, now, now)
        self.consumer._buffer.dispatch(self.clock)

    def take(self, now):
        """The next request with copies; `None` if none is due."""
        batch = self.consumer._copies.take(now)
        if batch is None:
            return None
        check_batch(batch, now)
        self.flights.append(Flight(self.consumer._copies, batch, now))
        return self.flights[-1]

    def originals(self):
        """The messages whose copies go out."""
        return [sending.delivery.current for sending in self.consumer._copies._sendings]

    def extend_and_settle(self):
        for part in () if self.stopped else (self.consumer._settler, self.consumer._heartbeat):
            while part.batch_threads.send_next():
                pass

    @property
    def has_ended(self):
        """Whether nothing is under way."""
        consumer = self.consumer
        return not (self.flights or consumer._copies.unfinished or consumer._settler._unfinished)


def check_batch(batch, now):
    """Originals are not lost; and the first batch of one event is full."""
    sendings = {each.tag.sending for each in batch.messages}
    for sending in sendings:
        assert now - sending.delivery.current.deadline < CHECK_SECONDS, "nothing is sent of what is lost"
    if batch.kind is Split and len(sendings) == 1 and batch.messages[0].tag.place == 0:
        most = min(BATCH_ENTRIES, len(sending.copies))
        assert len(batch) == most or batch.messages[0].failures, "ten records go out together"


class _Receiver:
    stopping = False

    def __init__(self, queue):
        self.queue = queue

    def stop(self):
        self.stopping = True

    @property
    def halted(self):
        return self.stopping

    def expect(self, *_):
        pass

    def wake(self):
        pass

    def wait_for_polls(self, *_):
        return True
