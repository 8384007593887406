"""The requests of a consumer that holds messages: extensions, settlements, in steps."""

from hypothesis.stateful import RuleBasedStateMachine
from support.factories import CHANGES, DELETES
from support.models.flights import FAULTS, Flight
from support.models.steps import step

from celery_sqs_visibility.core.copies import CopyBatch
from celery_sqs_visibility.core.settlements import Hide
from celery_sqs_visibility.errors import RequestRefusedError

SENDS = "SendMessage", "SendMessageBatch"

#: Steps of a request, after it was taken.
REACHED, CONCLUDED = 2, 3
HOW_FAR = [3, 3, 3, 2, 1, 0]

REQUEST = {"steps": HOW_FAR, "fault": list(FAULTS)}
WHICH = range(100)
POSITIONS = range(10)


class HeldFlight(Flight):
    """A request of the heartbeat, of the settler, or with dead letters."""

    def __init__(self, work, batch, since):
        super().__init__(work, batch, since)
        self.extends = hasattr(batch, "sent")
        self.sends = isinstance(batch, CopyBatch)
        self.changes_visibility = self.extends or (not self.sends and batch.origin.kind is Hide)

    def jobs(self):
        """Of each entry the delivery, its handle, and what is asked: seconds, or a settlement."""
        if self.extends:
            return self.batch.sent
        if self.sends:
            originals = [copy.tag.sending.delivery for copy in self.batch.messages]
            return [(delivery, delivery.handle, None) for delivery in originals]
        return [(one.delivery, one.delivery.handle, one.settlement) for one in self.batch.settlements]


class HeldRequests(RuleBasedStateMachine):
    """The part of the model that makes requests, of `queue_consumer`, to `sqs`, at `now`."""

    def __init__(self):
        super().__init__()
        self.flights = []
        self.hidden_until = {}  # by handle, since SQS was last told to
        self.disturbed = set()  # ids of messages that a late request has changed, by an old handle

    @step(position=POSITIONS, **REQUEST)
    def beat(self, steps=1, fault="none", position=0):
        self.request(self.queue_consumer.holder._heartbeat, steps, fault, position)

    @step(position=POSITIONS, **REQUEST)
    def settle(self, steps=1, fault="none", position=0):
        self.request(self.queue_consumer.holder.settler, steps, fault, position)

    @step(**REQUEST)
    def copy(self, steps=1, fault="none"):
        self.request(self.queue_consumer.holder.copies, steps, fault, 0)

    @property
    def unfinished(self):
        """How many settlements and copies are not over."""
        holder = self.queue_consumer.holder
        return holder.settler.batches.unfinished + holder.copies.pending.unfinished

    def request(self, work, steps, fault, position):
        """Of the next request the first so many steps."""
        flight = self.take(work) if steps else None
        if flight is not None and steps >= REACHED:
            self.send_through(flight, fault, position)
        if flight is not None and steps >= CONCLUDED:
            self.end_request(flight)

    def take(self, work):
        batch = work.take(self.now)
        if batch is None:
            return None
        flight = HeldFlight(work, batch, self.now)
        changing = [job for other in self.flights if other.changes_visibility for job in other.jobs()]
        others = [handle for _, handle, _ in changing]
        for delivery, handle, _ in flight.jobs():
            held = delivery.held
            assert held is (flight.extends or flight.sends), "what is settled is not extended"
            if flight.changes_visibility:
                assert handle not in others, "one writer a delivery"
                assert delivery.deadline > self.now, "another worker may have it"
        self.flights.append(flight)
        return flight

    @step(which=WHICH, fault=list(FAULTS), position=POSITIONS)
    def reach(self, which=0, fault="none", position=0):
        flights = [flight for flight in self.flights if flight.failed is None]
        if flights:
            self.send_through(flights[which % len(flights)], fault, position)

    def send_through(self, flight, fault, position):
        """A request reaches SQS, or does not."""
        flight.pass_through(fault, lambda: self.send_off(flight, fault, position))

    def send_off(self, flight, fault, position):
        error, jobs = FAULTS[fault], flight.jobs()
        if error is None or not jobs:
            pass
        elif flight.sends:
            for action in SENDS:
                self.sqs.fail_next(action, RequestRefusedError(fault) if "refused" in fault else error)
        else:
            action = CHANGES if flight.changes_visibility else DELETES
            self.sqs.fail_next(action, error, position % len(jobs))
        failed = flight.send()
        for action in SENDS:
            self.sqs._failures[action].clear()  # a letter that has become too late is not sent
        for place, (delivery, handle, asked) in enumerate(jobs):
            if flight.extends and place not in failed:
                assert handle not in self.hidden_until, "no extension after a retry delay"
            if flight.changes_visibility and place not in failed:
                self.note_change(delivery, handle, None if flight.extends else getattr(asked, "seconds", 0))
        return failed

    def note_change(self, delivery, handle, hidden_for):
        """SQS takes an old handle, too, and may take a late change for nothing."""
        message = self.messages.get(delivery.facts.message_id)
        if message is not None and message.handle != handle:
            self.disturbed.add(message.id)
            self.hidden_until.pop(message.handle, None)
        elif message is not None and hidden_for is not None and message.visible_at == self.now + hidden_for:
            self.hidden_until[handle] = message.visible_at

    @step(which=WHICH)
    def conclude(self, which=0):
        flights = [flight for flight in self.flights if flight.failed is not None]
        if flights:
            self.end_request(flights[which % len(flights)])

    def end_request(self, flight):
        self.flights.remove(flight)
        flight.conclude()
