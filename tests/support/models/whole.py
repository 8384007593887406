"""A whole worker as a model: its threads in any order, on a clock that the test turns, and SQS beside it.

The package's own threads run: receivers, heartbeat, settler, copies, payloads, supervisor. The model plays
Celery's main thread and the pool, the thread that drains, other workers, and the operator.
"""

import json
import logging
import os
import random
import threading
from contextlib import ExitStack
from types import SimpleNamespace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from support import factories
from support.clock import FakeClock
from support.factories import EVERYTHING, TIMEOUT
from support.models.account import Account
from support.models.pool import ENDS, Pool
from support.models.rest import check_rest, check_wakes
from support.models.steps import step
from support.scheduler import Scheduler, scheduled
from support.simulated_sqs import ACTIONS, FAULTS, Requests, SimulatedBucket, SimulatedSQS

from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.held import MARGIN_SECONDS
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.delivery import watches
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, Records
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.turn_line import TurnBuffers
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.events import subscribe
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.payload_pointers import new_key, pointer_body, size_attribute
from celery_sqs_visibility.testing.clock import replaced

#: The queues; the second has no dead-letter queue.
QUEUES = ("first", "second", "third.fifo")
KINDS = ("task", "task", "eta", "records", "unreadable", "large")
WHICH = range(20)
ETAS = (10, 200, 1000, 3000)

#: Seconds that a drain may take beyond its end: see `Shutdown.flush`.
HAND_BACK = 1.5

#: After this time nothing is tried again that has failed.
CALM = 100

#: The longest poll and its answer.
POLL = 12


class Whole(RuleBasedStateMachine):
    """One worker's process, which may be followed by others, and SQS."""

    def __init__(self, seed=None):
        super().__init__()
        self.world = ExitStack()
        if seed is not None:
            self.begin(seed)

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed):
        self.chance = chance = random.Random(seed)
        self.watches_runs = seed % 3 == 0  # whether some have an inactivity timeout
        self.state = random.getstate()
        self.leases = LeaseTable()
        self.world.callback(self.close_leases)
        self.world.callback(random.setstate, self.state)
        random.seed(seed)  # of pauses
        self.clock = FakeClock()
        self.scheduler = Scheduler(self.clock, chance, chance.choice([0.0, 0.1, 0.5]), self.check)
        self.world.enter_context(
            scheduled(
                self.scheduler,
                "celery_sqs_visibility.",
                apart=("celery_sqs_visibility.aws.fake",),
            )
        )
        self.world.callback(self.end_threads)
        self.world.enter_context(
            replaced(watches, "gc", SimpleNamespace(collect=lambda: None))
        )  # it takes long
        self.account = Account(self)
        self.requests = Requests(self.scheduler, chance, self.account.disturb_request)
        self.sqs = SimulatedSQS(self.clock, self.requests, late_change=chance.choice(list(LateChange)))
        self.bucket = SimulatedBucket(self.requests)
        self.graves = [factories.queue(self.sqs, name) for name in ("graves", "graves.fifo")]
        letters = dict(zip(("first", "third.fifo"), self.graves, strict=True))
        self.queues = {
            name: factories.queue(self.sqs, name, letters=letters.get(name), most=6) for name in QUEUES
        }
        self.sqs.sends, self.sqs.sent = self.account.check_copies, self.account.note_copies
        self.elsewhere = []  # queues and handles that other workers have
        self.unexpected = []  # errors that were logged
        self.world.callback(subscribe(self.account.note))
        self.log_unexpected_errors()
        self.open_consumer()

    def log_unexpected_errors(self):
        here = threading.get_ident()
        handler = logging.Handler(logging.ERROR)
        handler.addFilter(lambda record: record.thread == here)  # and not of a thread that a test before left
        handler.emit = lambda record: record.exc_info and self.unexpected.append(record)
        logger = logging.getLogger("celery_sqs_visibility")
        logger.addHandler(handler)
        self.world.callback(logger.removeHandler, handler)

    @property
    def now(self):
        return self.clock.monotonic()

    @property
    def messages(self):
        """What SQS has, but for dead letters, by id."""
        queues = [self.sqs.queues[queue.url] for queue in self.queues.values()]
        return {message.id: message for queue in queues for message in queue.messages}

    # The worker's process

    def open_consumer(self):
        """A worker starts."""
        chance = self.chance
        order = chance.choice(["fair", "fair", "strict", "weighted"])
        options = {
            "visibility_timeout": TIMEOUT,
            "heartbeat_interval": 40,
            "wait_time_seconds": chance.choice([0, 5]),
            "polling_interval": 1,
            "polling_interval_max": 4,
            "error_visibility_timeout": chance.choice([None, 9]),
            "payload_store": f"s3://{self.bucket.bucket}",
            "queue_order": order,
            "queues": {"first": {"weight": 3}, "second": {"max_running": 2}, "third.fifo": {}},
        }
        self.prefetch_seconds = chance.choice([0, 1])
        self.options = {
            "settle_window": chance.choice([0, 0.05]),
            "prefetch_seconds": self.prefetch_seconds,
            **options,
        }
        parsed = Options.parse(options)
        self.pump = Pump(self.clock)
        turns = Turns(order, parsed.for_queue) if order != "fair" or chance.random() < 0.5 else None
        self.turns = turns and TurnBuffers(turns, self.pump.lock)
        self.pool = Pool(self, slots=chance.choice([1, 3, 8]), dispatches=chance.random() < 0.5)
        self.pauses = Pauses(self.clock)
        self.has_started = self.ending = self.dying = False
        self.redrive = RedriveBook()
        self.has_loop = chance.random() < 0.5
        self.consumers, self.buffers = [], []
        self.connect()

    def connect(self):
        """Celery connects, for the first time or anew: with another consumer, and an empty buffer."""
        self.has_started = False
        self.shares, self.shared_at = (0, 0), self.now  # see `check_waiters`
        self.buffer = Buffer()
        self.consumer = factories.queue_consumer(
            self.clock,
            buffer=self.buffer,
            redrive=self.redrive,
            holder=self.consumers[0].holder if self.consumers else None,
            capacity=self.consumers[0].capacity if self.consumers else None,
            open_message=self.open_message,
            payloads=self.bucket,
            slots=self.pool.slots,
            turns=self.turns,
            pauses=self.pauses,
            leases=self.leases,
            consumers=lambda: self.consumers,
            pump=self.pump,
            **self.options,
        )
        self.consumers.append(self.consumer)
        self.buffers.append(self.buffer)
        self.pump._woken.woken_for_nothing = False  # see `check_lane`
        self.consumer.set_prefetch_count(self.pool.prefetch_count)
        self.main = self.scheduler.start(self.main_thread, "main")

    def main_thread(self):
        """Celery's."""
        for consumer in self.consumers[-2:-1]:
            consumer.close()
        for queue in self.queues.values():
            self.consumer.consume(queue, self.pool.on_message)
        self.has_started = True
        if self.has_loop:
            fd = self.buffer.fileno()
            while True:
                self.scheduler.wait_readable(fd)
                self.buffer.on_readable(self.clock)
        while True:
            self.buffer.wait(None)
            while self.buffer.run_callback():
                pass
            self.buffer.dispatch(self.clock)

    def do(self, action, *args, name="thread"):
        """In a thread of its own."""
        self.scheduler.start(action, name, *args)

    def run(self):
        """Often, all that can go on does, before anything else happens."""
        if self.chance.random() < 0.7:
            self.scheduler.advance(0)

    def end_threads(self):
        self.scheduler.kill(self.scheduler.threads)
        for buffer in self.buffers:
            buffer.close()
        for lease in list(self.leases._taken):
            self.leases.free(lease)

    def close_leases(self):
        """A process has one table, as long as it lives."""
        for descriptor in (self.leases._fd, *self.leases._pipe):
            os.close(descriptor)

    # Messages

    def open_message(self, queue, message):
        content = json.loads(message["Body"])
        if "unreadable" in content:
            raise UnreadableError("nobody can read it")
        if keys := content.get("records"):
            return Records(
                [self.message_of(queue, {"keys": [key]}, key) for key in keys],
                message["Body"],
                lambda left: self.message_of(
                    queue, {"records": [keys[place] for place in left]}, f"rest-of-{message['MessageId']}"
                ),
            )
        payload = {"handle": message["ReceiptHandle"], "body": message["Body"], "keys": content["keys"]}
        return DecodedMessage(payload, "task", content["keys"][0], eta=content.get("eta"))

    @staticmethod
    def message_of(queue, content, unique, attributes=None, body=None):
        fifo = {"group_id": f"g{len(unique) % 2}", "deduplication_id": unique} if queue.fifo else {}
        return OutgoingMessage(body or json.dumps(content), attributes or {}, **fifo)

    @step(often=4, queue=QUEUES, kind=KINDS, count=[1, 1, 2, 4, 12], eta=ETAS)
    def publish(self, queue="first", kind="task", count=1, eta=10):
        queue = self.queues[queue]
        for _ in range(count):
            keys = self.account.new_keys(3 if kind == "records" else 1)
            content, body, attributes = {"keys": keys}, None, None
            match kind:
                case "eta":
                    content["eta"] = self.clock.wall() + eta
                case "records":
                    content = {"records": keys}
                case "unreadable":
                    content["unreadable"] = True
                case "large":
                    key = new_key("")
                    self.bucket.objects[key] = json.dumps(content).encode()
                    body = pointer_body(self.bucket.bucket, key)
                    attributes = {**size_attribute(7)}
                    self.account.payloads[body] = keys
            message = self.message_of(queue, content, f"{kind}-{keys[0]}", attributes, body)
            self.account.published(self.sqs.send(queue.url, message), keys)
        self.run()

    # Runs

    @step(often=5, which=WHICH, how=list(ENDS))
    def end_run(self, which=0, how="success"):
        if run := self.pool.pick(which):
            self.do(self.pool.end, run, how, name=f"ends {run.id}")
            self.run()

    @step(which=WHICH)
    def end_all(self, which=0):
        for run in list(self.pool.running):
            self.do(self.pool.end, run, "success", name=f"ends {run.id}")
        self.run()

    @step(which=WHICH)
    def revoke(self, which=0):
        if self.pool.reserved:
            self.do(self.pool.revoke, self.pool.reserved[which % len(self.pool.reserved)])
            self.run()

    @step(which=WHICH, seconds=[5, 100, 600, 50_000])
    def extend(self, which=0, seconds=600):
        if run := self.pool.pick(which):
            self.do(run.delivery.extend, self.now + seconds)
            self.run()

    @step(often=0.3, which=WHICH)
    def lose_key(self, which=0):
        if run := self.pool.pick(which):
            self.do(run.delivery.tell_lost)
            self.run()

    # Others

    @step(queue=QUEUES, count=[1, 10])
    def receive_elsewhere(self, queue="first", count=10):
        queue = self.queues[queue]
        for message in self.sqs.receive(queue.url, count, 0, EVERYTHING):
            self.account.disturb(self.account.keys_in(message["Body"]))
            self.elsewhere.append((queue, message))

    @step(when=lambda world: world.elsewhere, which=WHICH)
    def succeed_elsewhere(self, which=0):
        queue, message = self.elsewhere.pop(which % len(self.elsewhere))
        known = self.messages.get(message["MessageId"])
        if known is not None and known.handle == message["ReceiptHandle"]:
            self.account.done.update(self.account.keys_in(message["Body"]))
            self.sqs.delete(queue.url, [message["ReceiptHandle"]])

    @step(often=2, action=[*ACTIONS.values(), "GetObject"], fault=FAULTS, times=[1, 1, 2, 5])
    def fail(self, action, fault, times=1):
        """Requests will."""
        self.requests.faults[action] += [fault] * times

    @step(often=0.5, latency=[0.02, 0.3, 1.0])
    def slow_down(self, latency):
        self.requests.latency = latency

    # The operator

    @step(often=0.7, queue=QUEUES, seconds=[5, 100, float("inf")])
    def pause(self, queue="first", seconds=100):
        def pause():
            self.pauses.pause(queue, seconds)
            self.consumer.notice_pause(queue)
            self.consumer.give_back_unstarted(queue)

        if not self.ending:
            self.do(pause, name="pause")
            self.run()

    @step(queue=QUEUES)
    def resume(self, queue="first"):
        self.pauses.resume(queue)
        self.do(self.consumer.notice_pause, queue)
        self.run()

    @step(often=0.5, count=[1, 4, 10, 0])
    def set_prefetch(self, count):
        def change():
            self.pool.prefetch_count = count
            self.consumer.set_prefetch_count(count)

        self.do(change)
        self.run()

    @step(often=0.3)
    def lose_connection(self):
        """Celery forgets what no process has, and connects anew. What runs goes on."""
        if self.has_started and not self.ending:
            self.scheduler.kill([self.main])
            self.pool.reserved = []
            self.connect()
            self.run()

    @step(often=0.3, grace=[0, 1, 25])
    def shut_down(self, grace=25):
        if self.has_started and not self.ending:
            self.ending = True
            self.do(self.drain, grace, name="drain")
            self.run()

    def drain(self, grace):
        """As `worker.drain.Drain` does it, and then the next worker starts."""
        consumers, ends = self.consumers, self.now + grace
        polls_until = min(self.now + POLL, ends)
        for consumer in consumers:
            consumer.stop_polling()
            consumer.end_by(ends, polls_until)
        for consumer in consumers:
            consumer.give_back_unstarted()
        for consumer in consumers:
            consumer.wait_for_polls(polls_until)
        for consumer in consumers:
            consumer.give_back_unstarted()
        for consumer in consumers:
            while (left := ends - self.now) > 0 and not consumer.wait_until_empty(min(left, 0.5)):
                pass
        received = self.account.counts["Received"]
        for consumer in consumers:
            consumer.hand_back()
        self.pool.kill()
        calm = self.requests.latency * 4 < HAND_BACK and not any(self.requests.faults.values())
        # What a poll brings meanwhile may be settled later.
        calm = calm and self.account.counts["Received"] == received
        if calm and max(self.requests.failed_at, self.account.awake_since) < ends - grace - CALM:
            unfinished = any(consumer.holder.settler.batches.unfinished for consumer in consumers)
            assert not unfinished, "a drain has the time to settle"
        self.dying = True

    @step(often=0.1)
    def die(self):
        """SIGKILL."""
        self.restart()

    def restart(self):
        """The process is gone, and another starts."""
        self.account.disturb_all()
        self.pool.kill()
        self.end_threads()
        self.open_consumer()

    # And time passes

    @step(often=4, seconds=[0, 0.01, 0.1, 1, 3, 10, 40])
    def wait(self, seconds=1):
        self.scheduler.advance(seconds)

    @step(often=0.6, seconds=[TIMEOUT, TIMEOUT + 1, 2000], how=[None, None, "success", "failure", "retry"])
    def sleep(self, seconds=TIMEOUT, how=None):
        """The machine; as it wakes a run may end before anything else happens.

        No thread is between its last look at a deadline and the request: nothing helps against that.
        """
        self.scheduler.advance(0)
        self.clock.advance(seconds)
        self.account.awake_since = self.now
        self.account.interrupt_copies()
        if seconds > TIMEOUT + MARGIN_SECONDS:
            self.account.forget()
        if how is not None:
            self.end_run(0, how)

    # What always holds

    def check(self):
        """Whenever no thread can go on."""
        check_wakes(self)
        self.account.check()

    def all_is_well(self):
        self.account.check()
        for record in self.unexpected:
            raise AssertionError(record.getMessage()) from record.exc_info[1]
        self.account.check_nothing_is_lost()
        if self.dying:
            self.restart()

    @invariant()
    def holds(self):
        if hasattr(self, "consumer"):
            self.all_is_well()

    def teardown(self):
        try:
            if hasattr(self, "consumer"):
                self.end_everything()
        finally:
            self.close()

    def close(self):
        self.world.close()

    def end_everything(self):
        """No more faults: all is done, and then the worker ends."""
        self.requests.faults.clear()
        self.requests.latency = 0.02
        self.scheduler.advance(0)  # a pause may have been told, and not begun
        for queue in QUEUES:
            self.resume(queue)
        check_rest(self)
