"""A worker whose requests the model of copies makes, and an SQS that denies a permission."""

from support import factories
from support.factories import EVERYTHING
from support.models.flights import Flight

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.core.copies import CHECK_SECONDS
from celery_sqs_visibility.core.settlements import RELEASE, Purpose
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
    """A worker: its consumers, the tasks that Celery has, and the requests with copies that are under way.

    Each connection has a consumer; those before the last finish what they hold.
    """

    def __init__(self, queue, clock):
        self.queue, self.clock = queue, clock
        self.tasks, self.flights, self.consumers = [], [], []
        self.handles = set()
        self.stopped = self.was_stopped = False
        self.connect()

    def connect(self):
        """Celery connects, for the first time or anew: then it forgets what it had."""
        self.give_back()
        self.tasks = []
        self.consumer = factories.queue_consumer(
            self.clock,
            open_message=EVENTS.decode,
            heartbeat_interval=40,
            holder=self.consumers[0].holder if self.consumers else None,
            consumers=lambda: self.consumers,
        )
        self.consumers.append(self.consumer)
        self.consumer._receivers.add(_Receiver(self.queue), self._take)
        self.consumer.set_prefetch_count(1000)

    def give_back(self, *kinds):
        """Receive nothing more, and give back what does not run; of these kinds send no copies either."""
        for consumer in self.consumers:
            consumer.stop_polling()
            consumer.holder.copies.interrupt(consumer, Purpose.RECORDS, *kinds)
            for delivery in factories.unstarted(consumer):
                delivery.settle(RELEASE)

    def _take(self, payload, delivery):
        self.tasks.append((payload, delivery))

    def receive(self):
        if self.stopped:
            return
        messages = self.queue.sqs.receive(self.queue.url, 10, 0, EVERYTHING)
        self.handles |= {each["ReceiptHandle"] for each in messages}
        now = self.clock.monotonic()
        self.consumer._arrived(self.queue, messages, now, now)
        self.consumer._buffer.dispatch(self.clock)

    def take(self, now):
        """The next request with copies; `None` if none is due."""
        for consumer in self.consumers:
            if (batch := consumer.holder.copies.take(now)) is not None:
                check_batch(batch, now)
                self.flights.append(Flight(consumer.holder.copies, batch, now))
                return self.flights[-1]
        return None

    def send_next(self):
        """Make a request with copies; whether one was due."""
        return any(consumer.holder.copies.lane.send_next() for consumer in self.consumers)

    def originals(self):
        """The messages whose copies go out."""
        pending = [consumer.holder.copies.pending for consumer in self.consumers]
        return [sending.delivery for copies in pending for sending in copies.sendings]

    def extend_and_settle(self):
        for consumer in () if self.stopped else self.consumers:
            for part in (consumer.holder.settler, consumer.holder._heartbeat):
                while part.lane.send_next():
                    pass

    @property
    def has_ended(self):
        """Whether nothing is under way."""
        return not self.flights and not any(
            consumer.holder.copies.pending.unfinished or consumer.holder.settler.batches.unfinished
            for consumer in self.consumers
        )

    @property
    def holds(self):
        """How many messages it holds, on which holder and capacities agree."""
        held = [(len(consumer.held()), consumer.capacity.held) for consumer in self.consumers]
        assert all(messages == capacity for messages, capacity in held), f"capacity is counted: {held}"
        return sum(messages for messages, _ in held)


def check_batch(batch, now):
    """Originals are not lost; and the first batch of one event is full."""
    sendings = {each.tag.sending for each in batch.messages}
    for sending in sendings:
        assert now - sending.delivery.deadline < CHECK_SECONDS, "nothing is sent of what is lost"
    if batch.purpose is Purpose.RECORDS and len(sendings) == 1 and batch.messages[0].tag.place == 0:
        most = min(BATCH_ENTRIES, len(sending.forward.messages))
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
