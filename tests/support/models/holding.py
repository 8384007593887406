"""What holds messages, as a model: any step at any time, any fault in any request; nothing is lost.

The steps are a consumer's own, on one thread and a clock that the machine turns: a request is taken, reaches
SQS, and its answer is concluded, and anything may happen in between. Users' listeners and logging filters
raise.
"""

import functools
from contextlib import ExitStack
from unittest.mock import Mock

from hypothesis.stateful import invariant
from support import factories
from support.clock import FakeClock
from support.factories import EVERYTHING, TIMEOUT, a_filter_that_raises
from support.models.held_requests import POSITIONS, REQUEST, WHICH, HeldRequests
from support.models.steps import step

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse
from celery_sqs_visibility.events import subscribe
from celery_sqs_visibility.worker.drain import LastRuns

#: How a run may end.
ENDS = {
    "success": lambda _: Delete(),
    "success, too": lambda _: Delete(),
    "failure": lambda _: Hide(7),
    "failure, for long": lambda _: Hide(400),
    "failure, at its own time": lambda _: Lapse(),
    "release": lambda _: RELEASE,
    "given up": lambda run: factories.letter(run.message_id, Hide(9)),
    "given up, or released": lambda run: factories.letter(run.message_id, RELEASE),
}


class Run:
    """A task that Celery has, and maybe runs; a request, as a shutdown sees it."""

    name = "task"

    def __init__(self, delivery, *, early):
        self.delivery = delivery
        self.id = self.message_id = delivery.facts.message_id
        self.begun = False
        self.killed = False
        self.early = delivery.acknowledged_early = early

    def end_in_shutdown(self):
        self.killed = True


#: Messages after which the worker may be told to end.
LATE = 15

MILLISECONDS = range(1001)


class Holding(HeldRequests):
    """One worker, others beside it, and SQS between them."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queue, self.graves = factories.queue(self.sqs), factories.queue(self.sqs, "graves")
        redrive = RedriveBook(lambda _: lambda: self.graves)
        redrive.get(self.queue, self.clock.monotonic())
        redrive.find_dead_letter_queue(self.queue)
        self.queue_consumer = factories.queue_consumer(self.clock, redrive=redrive, heartbeat_interval=40)
        self.receiver = Mock(stopping=False, halted=False, queue=self.queue)  # the machine polls in its place
        self.receiver.stop = lambda: self.receiver.configure_mock(stopping=True, halted=True)
        self.receiver.wait_for_polls.return_value = False
        self.queue_consumer._receivers.add(self.receiver, self.on_message)
        self.sent = set()
        self.runs = []
        self.early_runs = []  # that go on, though their messages are deleted
        self.lost = set()  # ids of messages whose early runs were lost, as the log says
        self.last_runs = LastRuns(self.active, lambda end: end())
        self.handed_over = 0
        self.done = set()  # ids of messages of which a run succeeded, here or elsewhere
        self.finished_at = {}  # and when, here
        self.elsewhere = []  # handles that other workers have
        self.wrong = []  # what may not raise where it happens
        self.known = []  # every delivery there ever was
        self.events = []
        self.world = ExitStack()
        self.world.callback(subscribe(self.events.append))
        self.world.callback(subscribe(lambda event: 1 / 0))
        self.world.enter_context(a_filter_that_raises())

    @property
    def now(self):
        return self.clock.monotonic()

    @property
    def messages(self):
        """What SQS has, by id."""
        return {message.id: message for message in self.sqs.queues[self.queue.url].messages}

    # Messages come

    @step(count=range(1, 5), begun=[4, 2, 1, 0], transit=MILLISECONDS)
    def send(self, count=1, begun=0, transit=0):
        """That many messages, which arrive here; so many of what waits begins."""
        self.sent |= {self.sqs.send(self.queue.url, OutgoingMessage("task")) for _ in range(count)}
        self.receive(transit=transit)
        for _ in range(begun):
            self.begin()

    @step(count=range(1, 11), transit=MILLISECONDS, handed_over=[True, True, False], listed=[1, 1, 1, 2])
    def receive(self, count=10, transit=0, handed_over=True, listed=1):
        """A poll; after the shutdown has begun, one that was under way. It may list a message twice."""
        asked = self.now
        messages = self.sqs.receive(self.queue.url, count, 0, EVERYTHING)
        self.clock.advance(transit / 1000)
        messages = [message for message in messages for _ in range(listed)]
        self.queue_consumer._arrived(self.queue, messages, asked, self.now)
        handles = [message["ReceiptHandle"] for message in messages]
        self.known += filter(None, map(self.queue_consumer.holder.get, handles))
        if handed_over:
            self.hand_over()

    @step()
    def hand_over(self):
        self.queue_consumer._buffer.dispatch(self.clock)

    def on_message(self, payload, _delivery):
        delivery = self.queue_consumer.holder.get(payload["handle"])
        if self.now <= self.finished_at.get(delivery.facts.message_id, -1e9) + TIMEOUT:
            self.wrong.append("what was finished here is run again")
        delivery.on_lost = functools.partial(self.on_lost, delivery)
        self.handed_over += 1
        self.runs.append(Run(delivery, early=self.handed_over % 5 == 0))

    def on_lost(self, delivery, _receipt):
        if not delivery.held:
            self.wrong.append("the run of what is settled is ended")

    @step(count=range(1, 11))
    def receive_elsewhere(self, count=10):
        messages = self.sqs.receive(self.queue.url, count, 0, EVERYTHING)
        self.elsewhere += [message["ReceiptHandle"] for message in messages]

    @step(when=lambda world: world.elsewhere, which=WHICH)
    def succeed_elsewhere(self, which=0):
        handle = self.elsewhere.pop(which % len(self.elsewhere))
        self.done |= {id_ for id_, message in self.messages.items() if message.handle == handle}
        self.sqs.delete(self.queue.url, [handle])

    # Tasks run

    def pick(self, which, *, begun):
        runs = [run for run in self.runs if run.begun is begun]
        return runs[which % len(runs)] if runs else None

    @step(which=WHICH, dispatched=[False, True])
    def begin(self, which=0, dispatched=False):
        run = self.pick(which, begun=False)
        if run is None:
            return
        may = run.delivery.dispatch() if dispatched else True
        if not (may and run.delivery.start()):
            self.runs.remove(run)
            return
        beside = [other for other in self.runs if other.begun and other.message_id == run.message_id]
        assert beside == [], "it is not run twice at once"
        run.begun = True
        if run.early:
            self.early_runs.append(run)
            self.end(run, Delete())

    def active(self):
        """The requests of what runs."""
        return [*(run for run in self.runs if run.begun), *self.early_runs]

    @step(which=WHICH)
    def end_early_run(self, which=0):
        """However it ends, it is done."""
        if self.early_runs:
            run = self.early_runs.pop(which % len(self.early_runs))
            self.done.add(run.message_id)

    @step(often=3, which=WHICH, how=list(ENDS), **REQUEST)
    def end_run(self, which=0, how="success", steps=0, fault="none"):
        if (run := self.pick(which, begun=True)) is not None:
            self.end(run, ENDS[how](run))
            self.settle(steps, fault)
            self.copy(steps, fault)

    def end(self, run, settlement):
        self.runs.remove(run)
        if settlement == Delete():
            if not run.early:
                self.done.add(run.message_id)
            self.finished_at[run.message_id] = self.now
        run.delivery.settle(settlement)
        assert not run.delivery.settle(Delete()), "a second settlement does nothing"
        if isinstance(settlement, Delete) or run.delivery.held:  # unless its copy came too late
            assert run.delivery.waiting is None, "what deletes a message waits for nothing"

    @step(which=WHICH, seconds=range(1, 901))
    def extend(self, which=0, seconds=600):
        if (run := self.pick(which, begun=True)) is not None:
            run.delivery.extend(self.now + seconds)

    # And time passes

    @step(part=MILLISECONDS, most=[2, 40])
    def wait(self, part, most):
        self.clock.advance(most * part / 1000)

    @step(position=POSITIONS, **REQUEST)
    def wait_for_the_next_beat(self, steps=0, fault="none", position=0):
        if (due := self.queue_consumer.holder.next_extension()) is not None:
            self.clock.advance(max(0, due - self.now))
        self.beat(steps, fault, position)

    @step(seconds=[TIMEOUT, TIMEOUT + 1, 2000], times=range(12))
    def sleep(self, seconds=TIMEOUT, times=0):
        """The whole machine, or a process that is stopped; seldom."""
        self.clock.advance(seconds if times == 0 else 0)

    @step(often=0.3, late=list(LateChange))
    def answer_late_changes(self, late):
        """As SQS does, which does not say how."""
        self.sqs.late_change = late

    @step(often=0.02, when=lambda world: len(world.sent) > LATE)
    def shut_down(self):
        """SIGTERM."""
        self.queue_consumer.stop_polling()
        self.queue_consumer.end_by(self.now, self.now)  # nobody settles while it would wait
        self.queue_consumer.give_back_unstarted()

    @step(often=0.1, when=lambda world: world.receiver.stopping)
    def time_is_up(self):
        """What runs is handed back, and its processes are killed; what was acknowledged early goes on."""
        self.queue_consumer._give_back(self.queue_consumer.held())
        self.last_runs.end_acknowledged_late()
        assert all(run.killed for run in self.runs if run.begun), "no run goes on without its message"
        self.bury()

    @step(often=0.02, when=lambda world: world.receiver.stopping)
    def nothing_is_waited_for(self):
        """A second signal, or the platform's grace is over: what was acknowledged early is lost."""
        self.lost |= {run.id for run in self.last_runs.acknowledged_early()}
        self.last_runs.end_acknowledged_early()
        self.bury()

    def bury(self):
        """Killed runs are gone."""
        self.runs = [run for run in self.runs if not run.killed]
        self.early_runs = [run for run in self.early_runs if not run.killed]

    @invariant()
    def all_is_well(self):
        assert self.wrong == [], "nothing went wrong where errors are swallowed"
        letters = {message.body for message in self.sqs.queues[self.graves.url].messages}
        early = {run.id for run in self.early_runs}
        gone = self.sent - self.messages.keys() - self.lost
        assert gone <= self.done | letters | early, "nothing is lost"
        for message in self.messages.values():
            if message.handle in self.hidden_until:
                assert message.visible_at == self.hidden_until[message.handle], "it comes back at its time"
        batches = [flight.batch for flight in self.flights if flight.extends]
        asked = {id(one.delivery) for batch in batches for one in [*batch.sent, *batch.others]}
        for delivery in self.known:
            assert delivery.extending == (id(delivery) in asked), "what is being extended is in a request"
            assert delivery.extending or delivery.waiting is None
            if delivery.held:
                assert self.is_hidden(delivery), "what this worker believes to hold, it holds"
                assert (delivery.bucket is not None) + delivery.extending + delivery.lost >= 1
            else:
                assert delivery.bucket is None, "only what is held is extended"
        places = sum(delivery.has_place for delivery in self.queue_consumer.held())
        assert self.queue_consumer.capacity.held == places, "capacity is freed"
        for run in self.runs:
            assert run.delivery.started is run.begun or not run.delivery.held

    def is_hidden(self, delivery):
        """Whether SQS hides a delivery's message for as long as the delivery says, from everybody else."""
        message = self.messages.get(delivery.facts.message_id)
        if message is None or message.id in self.disturbed or delivery.lost_by(self.now):
            return True
        return message.handle == delivery.handle and message.visible_at >= delivery.deadline

    def teardown(self):
        try:
            self.end_everything()
        finally:
            self.close()

    def close(self):
        self.world.close()

    def end_everything(self):
        self.shut_down()
        self.time_is_up()
        while self.early_runs:
            self.end_early_run()
        for _ in range(1000):
            self.beat()
            self.settle()
            self.copy()
            while any(flight.failed is None for flight in self.flights):
                self.reach()
            while self.flights:
                self.conclude()
            if not self.unfinished:
                break
            self.clock.advance(0.5)
        assert not self.unfinished
        assert len(self.queue_consumer.held()) == 0
        assert self.queue_consumer.holder.wait_for_extensions(0)
        assert self.queue_consumer.holder.next_extension() is None
        assert not any(delivery.extending or delivery.waiting for delivery in self.known)
        self.all_is_well()
