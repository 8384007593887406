"""Copies as a model: two workers, events and tasks that wait, slow requests, deploys, deaths, permissions.

Each step is a consumer's own, on one thread and a clock that the machine turns. Heartbeats and settlements
come in time, but for those of a worker that is stopped. A request that sends copies may take any time.
"""

import base64
import json
from collections import Counter
from functools import cache

from support import factories
from support.aws_events import s3_notification, s3_record
from support.clock import FakeClock
from support.models.copying_worker import DenyingSQS, Worker
from support.models.steps import step

from celery_sqs_visibility import task_message
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Purpose, Why
from celery_sqs_visibility.errors import ThrottledError
from celery_sqs_visibility.policy.continued_events import continued_in

ETA = 30  # seconds that a task waits for its key
WHICH = range(2)
FAULTS = {
    "none": (),
    "the request is lost": (),
    "the answer is lost": (),
    "one is throttled": (ThrottledError("slow down"), 3),
    "all are throttled": (ThrottledError("slow down"), None),
}
LIKELY_FAULTS = ["none"] * 8 + list(FAULTS)
TICK = 5  # seconds in which a worker that is not stopped extends and settles
ROUNDS = 400  # after which a worker that meets no fault has done everything


@cache
def opened(body):
    """An event, or a task's payload."""
    return json.loads(body if body.startswith("{") else base64.b64decode(body))


def records_in(body):
    """The records of a message, or its one task, by their keys."""
    content = opened(body)
    if "Records" not in content:
        return [key_of(content)]
    return [record["s3"]["object"]["key"] for record in content["Records"]]


def key_of(payload):
    (argument,) = json.loads(payload["body"])[0]
    return argument if isinstance(argument, str) else argument["s3"]["object"]["key"]


def carried(body, attributes):
    """The keys of what runs for a message: of an event that goes on, those that are left."""
    event = continued_in(attributes, "")
    return [key for place, key in enumerate(records_in(body)) if event.left(place)]


class Copies:
    """Two workers, and SQS between them, which denies one permission."""

    def __init__(self, denied="none", most=500):
        self.clock = FakeClock()
        self.denied, self.most = denied, most
        self.sent = Counter()  # records, by their keys, as a message each
        self.sqs = DenyingSQS(self.clock, denied, self.note_sent)
        self.queue = factories.queue(self.sqs)
        self.workers = [Worker(self.queue, self.clock) for _ in WHICH]
        self.keys, self.done = set(), Counter()
        #: How often each may run: once, and once more for each time that its worker died or was stopped, or
        #: that no answer came to its message.
        self.may = Counter()
        self.disturbances = 0
        self.publish_event(records=60 if most > 5 else 2)

    @property
    def messages(self):
        return self.sqs.queues[self.queue.url].messages

    @property
    def exact(self):
        """Whether nothing that is missing has messages come back that were done."""
        return self.denied in {"none", "send", "attributes"}

    # What is published

    def put(self, body, keys):
        FakeSQS.send(self.sqs, self.queue.url, OutgoingMessage(body))
        self.keys |= set(keys)
        self.may.update(keys)

    @step(often=0.5, records=[2, 15, 60, 120], when=lambda world: len(world.keys) < world.most)
    def publish_event(self, records):
        keys = [f"{len(self.keys) + n}" for n in range(records if self.most > records else 2)]
        self.put(json.dumps(s3_notification(*[s3_record(key=key) for key in keys])), keys)

    @step(when=lambda world: len(world.keys) < world.most)
    def publish_task(self):
        key = f"t{len(self.keys)}"
        self.put(task_message("waits", [key], task_id=key), [key])

    def note_sent(self, each):
        """SQS took a message of a worker's."""
        if "Records" not in opened(each.body):
            self.sent.update(records_in(each.body))

    # What workers do

    @step(often=4, which=WHICH)
    def receive(self, which):
        self.workers[which].receive()

    @step(
        often=8,
        which=WHICH,
        how_far=[3, 3, 3, 2, 1],
        fault=LIKELY_FAULTS,
        seconds=[0, 0, 0, 0.1, 3, 30],
    )
    def send(self, which, how_far, fault, seconds):
        """The next request with copies: taken, at SQS, answered."""
        worker = self.workers[which]
        if not worker.stopped and (flight := worker.take(self.clock.monotonic())) is not None:
            if how_far > 1:
                self.reach(worker.flights.index(flight), which, fault)
            self.wait(seconds)
            if how_far > 2:
                self.conclude(worker.flights.index(flight), which)

    @step(flight=range(9), which=WHICH, fault=LIKELY_FAULTS)
    def reach(self, flight, which, fault):
        worker = self.workers[which]
        waiting = [each for each in worker.flights[flight : flight + 1] if each.failed is None]
        for each in waiting:
            for action in ("SendMessageBatch", "SendMessage") if FAULTS[fault] else ():
                self.sqs.fail_next(action, *FAULTS[fault])
            each.pass_through(fault)
            self.sqs._failures.clear()
            if fault == "the answer is lost":
                for sent in each.batch.messages:
                    self.disturb(carried(sent.message.body, sent.message.attributes))

    @step(often=2, flight=range(9), which=WHICH)
    def conclude(self, flight, which):
        worker = self.workers[which]
        for each in worker.flights[flight : flight + 1]:
            if each.failed is not None and not worker.stopped:
                worker.flights.remove(each)
                each.conclude()

    @step(often=8, which=WHICH, has_key=[True, False, False])
    def run(self, which, has_key):
        worker = self.workers[which]
        if worker.stopped or not worker.tasks:
            return
        payload, delivery = worker.tasks.pop(0)
        key = key_of(payload)
        if not delivery.start():
            return
        if key[0] == "t" and not has_key:
            eta, hidden = self.clock.wall() + ETA, Hide(ETA, Why.KEY)
            renew = delivery.renewal(eta, lambda one: self.copy_of(one, payload), hidden)
            delivery.settle(renew or RELEASE)
        elif delivery.settle(Delete()):
            self.done[key] += 1

    def copy_of(self, delivery, payload):
        found = [each.body for each in self.messages if each.id == delivery.facts.message_id]
        return found[0] if found else base64.b64encode(json.dumps(payload).encode()).decode(), {}

    # What becomes of workers

    @step(often=1.5, which=WHICH)
    def connect_anew(self, which):
        """The connection is lost; its consumer goes on with its copies."""
        if not self.workers[which].stopped:
            self.workers[which].connect()

    @step(often=1.5, which=WHICH, kinds=[(), (Purpose.RENEWAL,)])
    def deploy(self, which, kinds):
        """SIGTERM: copies under way are finished; there may be no time for those of tasks that wait."""
        worker = self.workers[which]
        if worker.stopped:
            return
        worker.give_back(*kinds)
        self.work_off(worker)
        self.replace(which, clean=worker.has_ended)

    @step(often=0.2, which=WHICH, reached=[True, False])
    def die(self, which, reached):
        """Requests under way may reach SQS all the same."""
        for number in range(len(self.workers[which].flights) if reached else 0):
            self.reach(number, which, "none")
        self.replace(which, clean=False)

    def replace(self, which, *, clean):
        if not clean:
            self.disturb_held(self.workers[which])
        self.workers[which] = Worker(self.queue, self.clock)

    @step(often=0.3, which=WHICH)
    def stop(self, which):
        """SIGSTOP, or SIGCONT."""
        worker = self.workers[which]
        if not worker.stopped:
            self.disturb_held(worker)
            worker.was_stopped = True
        worker.stopped = not worker.stopped

    def disturb_held(self, worker):
        for each in self.messages:
            if each.handle in worker.handles:
                self.disturb(carried(each.body, each.message_attributes))

    def disturb(self, keys):
        self.may.update(keys)
        self.disturbances += len(keys)

    # And time passes

    @step(often=3, seconds=[0.1, 1, 20, factories.TIMEOUT])
    def wait(self, seconds):
        while seconds > 0:
            self.clock.advance(min(seconds, TICK))
            seconds -= TICK
            for worker in self.workers:
                worker.extend_and_settle()

    def work_off(self, worker):
        """Make all its requests, and wait for answers."""
        for _ in range(ROUNDS):
            for each in list(worker.flights):
                self.reach(0, self.workers.index(worker), "none")
                worker.flights.remove(each)
                each.conclude()
            sent = worker.send_next()
            worker.extend_and_settle()
            if not sent and worker.has_ended:
                return
            self.wait(0 if sent else 0.5)

    # What always holds

    def all_is_well(self):
        assert len(self.messages) <= 2 * len(self.keys) + self.disturbances, "copies do not grow"
        if self.exact:
            twice = {key for key in self.done if self.done[key] > self.may[key]}
            assert not twice, "nothing runs twice but after a death"
            twice = {key for key in self.sent if key[0] != "t" and self.sent[key] > self.may[key]}
            assert not twice, "what was sent is not sent again"
        for worker in self.workers:
            if self.denied != "change" and not worker.was_stopped:
                for original in worker.originals():
                    held = [each for each in self.messages if each.handle == original.handle]
                    now = self.clock.monotonic()
                    assert held[0].visible_at > now, "an original is held while its copies go out"

    def end_everything(self):
        """No more faults: all is done, or waits for the permission."""
        for worker in self.workers:
            worker.stopped = False
        for _ in range(ROUNDS if self.denied in {"none", "attributes"} else 2):
            for which, worker in enumerate(self.workers):
                worker.receive()
                self.work_off(worker)
                while worker.tasks:
                    self.run(which, has_key=True)
                self.all_is_well()
            self.wait(TICK)
            if not self.messages:
                break
        left = {key for each in self.messages for key in carried(each.body, each.message_attributes)}
        assert self.keys <= self.done.keys() | left, "nothing is lost"
        if self.denied in {"none", "attributes"}:
            assert not left, "everything is done"
            assert not any(worker.holds for worker in self.workers), "nothing is held"

    def close(self):
        pass
