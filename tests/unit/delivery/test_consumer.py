"""All of it together: what arrives is handed over or given back, and what is settled is settled."""

from __future__ import annotations

import json
import select
import threading

import pytest
from support.batch_threads import work_off
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.model import Delete, Hide, Lapse, Release
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.decoder import Opened, UnreadableError
from celery_sqs_visibility.delivery.settle.settlements import REAPPEARS_AFTER
from celery_sqs_visibility.errors import AccessDeniedError, ReceiptHandleInvalidError, ThrottledError
from celery_sqs_visibility.events import (
    DeadLettered,
    Deleted,
    FinishedBefore,
    Hidden,
    Lost,
    Parked,
    Released,
    Renewed,
    Started,
    Superseded,
    Unreadable,
    subscribe,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

TIMEOUT = 120
RECEIVE = ReceiveOptions(visibility_timeout=TIMEOUT, system_attributes=("All",), message_attributes=("All",))


class BrokenError(Exception):
    """Not what opening a message should raise."""


def opened(clock):
    def open_message(_queue, message):
        match message["Body"].split(":"):
            case ["unreadable"]:
                raise UnreadableError("nobody can read it")
            case ["broken"]:
                raise BrokenError
            case ["stumble"]:
                return Opened({}, eta="not a number")
            case ["eta", seconds]:
                return Opened({"handle": message["ReceiptHandle"]}, eta=clock.wall() + float(seconds))
            case _:
                return Opened({"handle": message["ReceiptHandle"], "body": message["Body"]})

    return open_message


class BusySQS(FakeSQS):
    """Something may happen while it changes a visibility."""

    meanwhile = staticmethod(lambda: None)

    def change_visibility(self, queue_url, changes):
        result = super().change_visibility(queue_url, changes)
        self.meanwhile()
        return result


class Events:
    """What happened so far, and what happens next; bounded."""

    def __init__(self):
        self.seen = []
        self.changed = threading.Condition()

    def __call__(self, event):
        with self.changed:
            self.seen.append(event)
            self.changed.notify_all()

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]

    def wait(self, kind, count=1):
        with self.changed:
            came = self.changed.wait_for(lambda: len(self.of(kind)) >= count, SOON)
            assert came, f"no {kind}: {self.seen}"
            return self.of(kind)


class World:
    """A consumer that polls at once, and then sleeps until it expects something."""

    def __init__(self, **options):
        self.clock = FakeClock()
        self.sqs = BusySQS(self.clock)
        self.handed = []
        given = {"polling_interval": 3600, "settle_window": 0, "prefetch_seconds": 0, **options}
        self.buffer = Buffer()
        self.redeliveries = RedeliveryIndex(TIMEOUT, self.clock)
        self.options = Options.parse(given)
        self.queue_consumers = []
        self.queue_consumer = self.new_queue_consumer()

    def new_queue_consumer(self):
        """Another in the same process, as after a lost connection."""
        queue_consumer = QueueConsumer(
            self.options,
            RECEIVE,
            opened(self.clock),
            RedriveBook(),
            self.redeliveries,
            self.buffer,
            self.clock,
        )
        queue_consumer.capacity.prefetch_count = 10
        # They would find a clock that stands still, and jumps. Tests themselves extend what is held.
        queue_consumer._supervisor.start = queue_consumer._heartbeat.batch_threads.start = lambda: None
        self.queue_consumers.append(queue_consumer)
        return queue_consumer

    def queue(self, name="q", attributes=None):
        return Queue(name, self.sqs.create_queue(name, attributes or {}, {}), self.sqs)

    def send(self, queue, *bodies):
        for body in bodies:
            self.sqs.send(queue.url, OutgoingMessage(body))

    def consume(self, queue, *bodies, hand_over=None):
        self.send(queue, *bodies)
        self.queue_consumer.consume(queue, hand_over or (self.handed.append))

    def deliveries(self, queue, *bodies):
        """Consume these messages, and hand them over, when the receiver has gone to sleep."""
        self.consume(queue, *bodies)
        assert self.buffer.wait(SOON)
        self.wait_for_sleep(queue)
        self.buffer.hand_over(self.clock)
        return [self.delivery(payload) for payload in self.handed]

    def next_poll(self, queue):
        """Its receiver's."""
        receiver, _ = self.queue_consumer._receivers[queue.name]
        with receiver._changed:
            return receiver._schedule.next_poll()

    def wait_for_sleep(self, queue):
        wait_until(lambda: self.next_poll(queue) > self.clock.monotonic(), SOON, "the receiver to sleep")

    def delivery(self, payload):
        """As kombu's message looks it up."""
        return self.queue_consumer.ledger.get(payload["handle"])

    def visible(self, queue):
        return [message["Body"] for message in self.sqs.receive(queue.url, 10, 0, RECEIVE)]

    def left(self, queue):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return sum(map(int, self.sqs.queue_attributes(queue.url, names).values()))

    def extend(self):
        """A beat of the heart, as its thread would do it when it is time."""
        self.clock.advance(TIMEOUT * 2 / 3)
        work_off(self.queue_consumer._heartbeat.batch_threads)

    def count(self, action):
        return sum(name == action for name, _ in self.sqs.calls)

    def come_back(self, queue, queue_consumer=None):
        """The messages' visibility ran out, and the receiver, whose part the test plays, polls again."""
        queue_consumer = queue_consumer or self.queue_consumer
        self.clock.advance(TIMEOUT)
        now = self.clock.monotonic()
        messages = self.sqs.receive(queue.url, 10, 0, RECEIVE)
        for _ in messages:
            queue_consumer.capacity.received(queue_consumer.capacity.reserve(queue.name, SOON), 1)
        queue_consumer._arrived(queue, messages, now, now)
        return [queue_consumer.ledger.get(message["ReceiptHandle"]) for message in messages]

    def handles(self, action):
        """Of the batches of that action, in order."""
        batches = [arguments for name, arguments in self.sqs.calls if name == action]
        return [entry for batch in batches for entry in (batch.get("handles") or batch["changes"])]

    def close(self):
        for queue_consumer in self.queue_consumers:
            for delivery in queue_consumer.ledger.all():
                delivery.settle(Lapse())
            queue_consumer.close()
        self.buffer.close()


@pytest.fixture
def make():
    worlds = []

    def make(**options):
        worlds.append(World(**options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make):
    return make()


@pytest.fixture
def queue(world):
    return world.queue()


@pytest.fixture
def graves(world):
    return world.queue("graves")


@pytest.fixture
def mortal(world, graves):
    arn = world.sqs.queue_attributes(graves.url, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    return world.queue("mortal", {"RedrivePolicy": policy})


@pytest.fixture
def events():
    events = Events()
    end = subscribe(events)
    yield events
    end()


def test_what_arrives_is_handed_over_in_order(world, queue):
    world.consume(queue, "a", "b", "c")
    assert world.buffer.wait(SOON)
    assert world.buffer.hand_over(world.clock) == 3
    assert [payload["body"] for payload in world.handed] == ["a", "b", "c"]
    assert len(world.queue_consumer.ledger) == world.queue_consumer.capacity.held == 3


def test_what_was_settled_is_no_longer_held(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    assert one.settle(Delete())
    events.wait(Deleted)
    assert len(world.queue_consumer.ledger) == world.queue_consumer.capacity.held == 0
    assert world.left(queue) == 0


def test_a_second_settlement_does_nothing(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    one.settle(Hide(30))
    assert one.settle(Delete()) is False
    events.wait(Hidden)
    assert world.queue_consumer.capacity.held == 0
    assert world.left(queue) == 1


def test_a_hidden_message_comes_back_although_the_queue_sleeps(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    one.settle(Hide(30))
    assert events.wait(Hidden) == [Hidden(one.facts, 30)]
    world.clock.advance(30 + REAPPEARS_AFTER)
    receiver, _ = world.queue_consumer._receivers["q"]
    receiver.expect("to have it look at the clock again", world.clock.monotonic() - 1)
    assert world.buffer.wait(SOON)


def test_a_requeued_message_comes_back_although_the_queue_sleeps(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    world.queue_consumer.rejection.reject(one, requeue=True)
    events.wait(Released)
    wait_until(lambda: world.next_poll(queue) <= world.clock.monotonic() + 1, SOON, "it to be expected")


def test_a_lapse_costs_no_request_and_is_expected_at_the_deadline(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    world.clock.advance(20)
    one.settle(Lapse())
    assert events.of(Hidden) == [Hidden(one.facts, TIMEOUT - 20)]
    assert world.count("ChangeMessageVisibilityBatch") == 0
    assert world.next_poll(queue) == one.deadline + REAPPEARS_AFTER


def test_a_hide_beyond_the_horizon_is_told_and_expected_as_sqs_was_asked(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    one.deadline = world.clock.monotonic() + 11 * 3600 + TIMEOUT  # after eleven hours of heartbeats
    world.clock.advance(11 * 3600)
    one.settle(Hide(VISIBILITY_HORIZON))
    (hidden,) = events.wait(Hidden)
    ((_, asked),) = next(
        arguments["changes"]
        for action, arguments in world.sqs.calls
        if action == "ChangeMessageVisibilityBatch"
    )
    assert asked <= 3600
    assert hidden.seconds == asked


def test_a_retry_delay_is_not_overwritten_by_an_extension_in_flight(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    world.sqs.meanwhile = lambda: one.settle(Hide(5))
    world.extend()
    events.wait(Hidden)
    changes = [a["changes"][0][1] for name, a in world.sqs.calls if name == "ChangeMessageVisibilityBatch"]
    assert changes == [TIMEOUT, 5]


def test_a_settlement_that_waits_for_an_extension_survives_the_closing(world, queue, events):
    world.deliveries(queue, "a")

    def close():
        world.sqs.meanwhile = lambda: None
        world.queue_consumer.close()
        for thread in list(world.queue_consumer._settlements.settler.batch_threads._threads):
            thread.join(0.1)  # whoever means to end has ended

    world.sqs.meanwhile = close
    world.extend()
    events.wait(Released)
    assert world.visible(queue) == ["a"]


def test_a_message_that_lapsed_in_the_inbox_is_not_run_and_told_lost(make, events):
    world = make(heartbeat_interval=0)
    queue = world.queue()
    world.consume(queue, "a")
    assert world.buffer.wait(SOON)
    world.wait_for_sleep(queue)
    world.clock.advance(TIMEOUT)
    world.buffer.hand_over(world.clock)
    assert world.handed == []
    assert world.handed == []
    assert world.queue_consumer.capacity.held == 0
    assert [type(event) for event in events.seen[1:]] == [Lost]


def test_a_message_that_celery_cannot_take_is_hidden_as_after_an_error(make, events, caplog):
    world = make(error_visibility_timeout=45)
    queue = world.queue()

    def broken(payload):
        raise KeyError("body")

    world.consume(queue, "a", hand_over=broken)
    assert world.buffer.wait(SOON)
    world.buffer.hand_over(world.clock)
    assert events.wait(Hidden)[0].seconds == 45
    assert "message could not be handed to Celery" in caplog.text


def test_a_far_eta_is_parked_and_not_handed_over(world, queue, events):
    world.consume(queue, "eta:3600")
    assert events.wait(Parked)[0].seconds == pytest.approx(3595)
    world.buffer.hand_over(world.clock)
    assert world.handed == []
    assert world.queue_consumer.capacity.held == 0


def received_before(world, queue, times):
    for _ in range(times):
        world.sqs.receive(queue.url, 10, 0, ReceiveOptions(visibility_timeout=0))


def test_a_far_eta_waits_on_as_a_copy_where_sqs_would_not_hand_it_out_again(world, mortal, events):
    world.send(mortal, "eta:3600")
    received_before(world, mortal, 2)
    world.consume(mortal)
    assert events.wait(Renewed)[0].seconds == 900
    events.wait(Deleted)
    actions = [name for name, _ in world.sqs.calls if name in ("SendMessage", "DeleteMessageBatch")]
    assert actions == ["SendMessage", "SendMessage", "DeleteMessageBatch"], "sent, copied, then deleted"
    assert events.of(Parked) == []
    assert world.queue_consumer.capacity.held == 0
    assert world.visible(mortal) == []
    world.clock.advance(900)
    (copy,) = world.sqs.receive(mortal.url, 1, 0, RECEIVE)
    assert (copy["Body"], copy["Attributes"]["ApproximateReceiveCount"]) == ("eta:3600", "1")


def test_a_copy_that_comes_back_is_expected(world, mortal, events):
    world.send(mortal, "eta:3600")
    received_before(world, mortal, 2)
    world.consume(mortal)
    events.wait(Renewed)
    assert world.next_poll(mortal) == pytest.approx(world.clock.monotonic() + 900 + REAPPEARS_AFTER)


def test_a_copy_keeps_attributes_and_group_but_not_the_deduplication_id(world, graves, events):
    arn = world.sqs.queue_attributes(graves.url, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    queue = world.queue("q.fifo", {"FifoQueue": "true", "RedrivePolicy": policy})
    attributes = {"trace": {"DataType": "String", "StringValue": "1-2-3"}}
    message = OutgoingMessage("eta:3600", attributes, group_id="g", deduplication_id="d")
    world.sqs.send(queue.url, message)
    received_before(world, queue, 2)
    world.consume(queue)
    events.wait(Deleted)
    assert world.left(queue) == 1
    copy = [arguments["message"] for name, arguments in world.sqs.calls if name == "SendMessage"][-1]
    assert (copy.group_id, copy.delay) == ("g", None), "in a FIFO queue it is there at once"
    assert copy.deduplication_id == events.of(Renewed)[0].delivery.message_id
    assert copy.attributes == attributes


def test_a_far_eta_is_held_where_the_queue_takes_no_copy_of_it(world, mortal, events, caplog):
    world.send(mortal, "eta:3600", "eta:7200")
    received_before(world, mortal, 2)
    for _ in range(2):
        world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    world.consume(mortal)
    wait_until(lambda: len(world.buffer) == 2, SOON, "both to be handed over")
    world.buffer.hand_over(world.clock)
    held = [world.delivery(payload) for payload in world.handed]
    assert world.queue_consumer.ledger.all() == held
    assert world.queue_consumer.capacity.held == 2
    assert events.of(Parked) == events.of(Lost) == []
    assert caplog.text.count("allow sqs:SendMessage") == 1
    assert held[0].settle(Delete())
    events.wait(Deleted)
    assert world.left(mortal) == 1


def test_where_it_may_come_back_a_message_whose_copy_is_refused_is_parked(world, mortal, events):
    world.send(mortal, "eta:3600")
    received_before(world, mortal, 1)
    world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    world.consume(mortal)
    assert events.wait(Parked)[0].seconds == pytest.approx(3595)
    assert world.buffer.get() is None


def test_a_copy_that_cannot_be_sent_now_is_tried_again_and_nothing_is_deleted_meanwhile(
    world, mortal, events
):
    world.send(mortal, "eta:3600")
    received_before(world, mortal, 2)
    world.sqs.fail_next("SendMessage", ThrottledError("slow down"))
    world.consume(mortal)
    wait_until(lambda: world.count("SendMessage") == 2, SOON, "the copy to be tried")
    assert world.count("DeleteMessageBatch") == 0
    world.clock.advance(5)
    world.queue_consumer._settlements.settler.batch_threads.call()
    events.wait(Renewed)
    events.wait(Deleted)


def test_parks_are_told_of_what_was_received_for_another_reason(world, queue):
    world.send(queue, "eta:-60")
    world.sqs.receive(queue.url, 1, 0, ReceiveOptions(visibility_timeout=0))
    world.clock.advance(3600)
    (one,) = world.deliveries(queue)
    assert one.parks == 1


def test_an_unreadable_message_is_moved_to_the_dead_letters(world, mortal, graves, events):
    world.consume(mortal, "unreadable")
    events.wait(Deleted)
    assert events.of(Unreadable)[0].reason == "nobody can read it"
    assert events.of(DeadLettered)
    assert (world.left(mortal), world.left(graves)) == (0, 1)


def test_an_unreadable_message_is_never_deleted_without_dead_letters(world, queue, events):
    world.consume(queue, "unreadable")
    events.wait(Hidden)
    assert world.left(queue) == 1
    assert world.count("DeleteMessageBatch") == 0


def test_a_message_that_opening_stumbles_over_costs_neither_the_others_nor_any_room(world, queue):
    world.consume(queue, "broken", "a")
    assert world.buffer.wait(SOON)
    world.buffer.hand_over(world.clock)
    assert [payload["body"] for payload in world.handed] == ["a"]
    assert world.queue_consumer.capacity.held == len(world.queue_consumer.ledger)


def test_a_message_that_is_stumbled_over_lapses_and_does_not_keep_the_others_from_celery(
    world, queue, events, caplog
):
    world.consume(queue, "a", "stumble", "b")
    assert world.buffer.wait(SOON)
    world.buffer.hand_over(world.clock)
    assert [payload["body"] for payload in world.handed] == ["a", "b"]
    assert [event.seconds for event in events.wait(Hidden)] == [TIMEOUT]
    assert world.count("ChangeMessageVisibilityBatch") == 0
    assert world.queue_consumer.capacity.held == len(world.queue_consumer.ledger) == 2
    assert "taking in a message stumbled" in caplog.text


def test_what_failed_for_good_is_moved_to_the_dead_letters_with_the_reason(world, mortal, graves, events):
    (one,) = world.deliveries(mortal, "a")
    world.queue_consumer.rejection.give_up(
        one, "its last attempt failed", lambda: "the body", exception="ValueError()"
    )
    events.wait(Deleted)
    assert events.of(DeadLettered) == [DeadLettered(one.facts, "its last attempt failed")]
    assert (world.left(mortal), world.left(graves)) == (0, 1)


def test_what_failed_for_good_is_deleted_where_there_are_no_dead_letters(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    world.queue_consumer.rejection.give_up(
        one, "its last attempt failed", lambda: pytest.fail("nobody needs the body")
    )
    events.wait(Deleted)
    assert world.left(queue) == 0


def test_a_rejected_message_is_left_to_the_redrive_policy(world, mortal, events):
    (one,) = world.deliveries(mortal, "a")
    world.queue_consumer.rejection.reject(one, requeue=False)
    events.wait(Hidden)
    assert world.left(mortal) == 1


def test_a_rejected_message_is_deleted_where_there_is_no_redrive_policy(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    world.queue_consumer.rejection.reject(one, requeue=False)
    events.wait(Deleted)


def test_a_cancelled_queue_gives_back_what_nobody_has_seen(world, queue, events):
    other = world.queue("other")
    buffer = world.buffer
    for name, body in ((queue, "a"), (other, "b")):
        loop = buffer.fileno()
        world.consume(name, body)
        assert select.select([loop], [], [], SOON)[0]
        buffer.woken()
    world.queue_consumer.cancel("q")
    assert events.wait(Released)[0].delivery.queue == "q"
    assert world.buffer.hand_over(world.clock) == 1
    assert [payload["body"] for payload in world.handed] == ["b"]


def test_what_is_given_back_while_it_is_handed_over_is_not_run(world, queue, events):
    handed = []

    def hand_over(payload):
        world.queue_consumer.stop_polling()
        world.queue_consumer.give_back_unstarted()
        handed.append(world.delivery(payload))

    world.consume(queue, "a", hand_over=hand_over)
    assert world.buffer.wait(SOON)
    world.buffer.hand_over(world.clock)
    assert events.wait(Released) == [Released(handed[0].facts)]
    assert not handed[0].start()
    assert not handed[0].settle(Delete())


def test_what_arrived_before_the_polls_were_stopped_is_not_handed_over(world, queue, events):
    world.consume(queue, "a")
    assert world.buffer.wait(SOON)
    world.queue_consumer.stop_polling()
    world.buffer.hand_over(world.clock)
    assert world.handed == []
    world.queue_consumer.close()
    assert len(events.of(Released)) == 1
    assert world.visible(queue) == ["a"]


def test_cancelling_what_is_not_consumed_is_harmless(world):
    world.queue_consumer.cancel("nothing")


def test_closing_gives_back_what_did_not_start_and_keeps_what_runs(world, queue, events):
    runs, waits = world.deliveries(queue, "a", "b")
    world.queue_consumer.start(runs)
    world.queue_consumer.close()
    assert events.of(Released) == [Released(waits.facts)]
    assert world.visible(queue) == ["b"]
    world.extend()
    assert not runs.lost
    runs.settle(Delete())
    events.wait(Deleted)


def test_closing_keeps_what_was_dispatched(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    assert one.dispatch()
    world.queue_consumer.close()
    assert events.of(Released) == []
    assert world.queue_consumer.ledger.all() == [one]
    world.extend()
    assert one.start()
    assert one.settle(Delete())
    events.wait(Deleted)
    assert world.left(queue) == 0


def test_what_a_poll_brings_after_the_closing_is_given_back_and_leaves_no_thread(world, queue, events):
    world.deliveries(queue, "a")
    world.queue_consumer.close()
    world.come_back(queue)
    events.wait(Released, 2)
    settlers = world.queue_consumer._settlements.settler.batch_threads._threads
    for thread in list(settlers):
        thread.join(SOON)
    assert settlers == set()
    assert (world.queue_consumer.capacity.held, len(world.queue_consumer.ledger), len(world.buffer)) == (
        0,
        0,
        0,
    )


def test_a_signal_handler_may_settle_the_last_one_wherever_the_closing_is(world, queue):
    (one,) = world.deliveries(queue, "a")
    assert one.start()
    world.queue_consumer.close()
    settled = []

    def settle_in_the_critical_section():
        with world.queue_consumer._lock:
            settled.append(one.settle(Delete()))

    thread = threading.Thread(target=settle_in_the_critical_section, daemon=True)
    thread.start()
    thread.join(SOON)
    if not settled:
        world.queue_consumers.clear()  # its lock is taken for good, and closing it would wait for that
    assert settled == [True]


def test_what_was_dispatched_runs_although_it_is_lost_and_its_success_is_settled(make, events):
    world = make(heartbeat_interval=0)
    queue = world.queue()
    (one,) = world.deliveries(queue, "a")
    assert one.dispatch()
    world.clock.advance(TIMEOUT)
    work_off(world.queue_consumer._heartbeat.batch_threads)
    assert one.lost
    assert one.start()
    assert events.of(Started) == [Started(one.facts)]
    assert one.settle(Delete())
    events.wait(Deleted)
    assert (world.queue_consumer.capacity.held, world.left(queue)) == (0, 0)


def test_closing_twice_or_before_anything_is_harmless(world):
    world.queue_consumer.close()
    world.queue_consumer.close()


def test_it_can_be_used_again_after_it_was_closed(world, queue, events):
    world.deliveries(queue, "a")
    world.queue_consumer.close()
    world.handed.clear()
    (again,) = world.deliveries(queue)
    again.settle(Release())
    events.wait(Released, 2)


def test_what_lapsed_is_not_hidden_any_more_but_may_still_be_deleted(make, events):
    world = make(heartbeat_interval=0)
    queue = world.queue()
    hidden, deleted = world.deliveries(queue, "a", "b")
    world.clock.advance(TIMEOUT)
    hidden.settle(Hide(5))
    deleted.settle(Delete())
    events.wait(Deleted)
    assert [event.delivery for event in events.of(Lost)] == [hidden.facts, deleted.facts]
    assert world.count("ChangeMessageVisibilityBatch") == 0


def test_the_main_thread_hands_over_for_a_moment_only_and_is_woken_for_the_rest(world, queue):
    loop = world.buffer.fileno()
    world.consume(queue, "a", "b", hand_over=lambda _payload: world.clock.advance(1))
    assert world.buffer.wait(SOON)
    world.buffer.woken()
    assert world.buffer.hand_over(world.clock) == 1
    assert loop == world.buffer.fileno()
    assert world.buffer.hand_over(world.clock) == 1


def test_what_failed_for_good_is_kept_where_the_option_or_the_task_says_so(make, events):
    world = make(on_exhausted="keep")
    queue = world.queue()
    kept, deleted = world.deliveries(queue, "a", "b")
    world.queue_consumer.rejection.give_up(kept, "failed", lambda: pytest.fail("nobody needs the body"))
    world.queue_consumer.rejection.give_up(deleted, "failed", lambda: pytest.fail("nor here"), "delete")
    assert events.wait(Hidden) == [Hidden(kept.facts, 3600)]
    assert events.wait(Deleted) == [Deleted(deleted.facts)]


def test_what_failed_for_good_is_released_where_only_sqs_may_move_it(world, mortal, events):
    (one,) = world.deliveries(mortal, "a")
    world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    world.queue_consumer.rejection.give_up(one, "failed", lambda: "the body")
    events.wait(Released)
    assert world.left(mortal) == 1


class TestComingBack:
    """A message comes back to the process that has it; the newest handle is the only one that counts."""

    @pytest.fixture
    def world(self, make):
        return make(heartbeat_interval=0)

    def test_in_the_inbox_it_waits_on_and_is_handed_over_once(self, world, queue, events):
        handed = []
        world.consume(queue, "a", hand_over=lambda payload: handed.append(world.delivery(payload)))
        assert world.buffer.wait(SOON)
        world.wait_for_sleep(queue)
        (back,) = world.come_back(queue)
        assert world.buffer.hand_over(world.clock) == 1
        assert [one.current for one in handed] == [back]
        assert world.delivery({"handle": handed[0].handle}) is handed[0], (
            "kombu acknowledges by the old handle"
        )
        assert events.of(Superseded) == [Superseded(back.facts)]
        assert events.of(Lost) == []
        assert world.queue_consumer.capacity.held == len(world.queue_consumer.ledger) == 1

    def test_in_the_inbox_it_may_lapse_again_and_is_let_go(self, world, queue, events):
        world.consume(queue, "a")
        assert world.buffer.wait(SOON)
        world.wait_for_sleep(queue)
        world.come_back(queue)
        world.clock.advance(TIMEOUT)
        world.buffer.hand_over(world.clock)
        assert world.handed == []
        assert world.queue_consumer.capacity.held == len(world.queue_consumer.ledger) == 0

    @pytest.mark.parametrize("begin", ["start", "dispatch"])
    def test_what_was_handed_over_is_begun_as_the_newest(self, world, queue, events, begin):
        (one,) = world.deliveries(queue, "a")
        (back,) = world.come_back(queue)
        assert getattr(one, begin)()
        assert (back.started, back.dispatched) == (begin == "start", begin == "dispatch")
        assert world.queue_consumer.ledger.unstarted() == []

    @pytest.mark.parametrize("begin", ["start", "dispatch"])
    def test_what_runs_is_not_run_twice_and_settled_with_its_newest_handle(self, world, queue, events, begin):
        (one,) = world.deliveries(queue, "a")
        getattr(one, begin)()
        (back,) = world.come_back(queue)
        assert len(world.buffer) == 0
        assert (back.started, back.dispatched) == (begin == "start", begin == "dispatch")
        assert world.queue_consumer.capacity.held == 1
        assert one.settle(Delete())
        events.wait(Deleted)
        assert world.handles("DeleteMessageBatch") == [back.handle]
        assert (world.queue_consumer.capacity.held, len(world.queue_consumer.ledger), world.left(queue)) == (
            0,
            0,
            0,
        )

    def test_a_second_settlement_does_nothing_whichever_delivery_is_in_hand(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.start()
        (back,) = world.come_back(queue)
        assert one.settle(Hide(30))
        assert not one.settle(Delete())
        assert not back.settle(Delete())
        events.wait(Hidden)
        assert world.handles("ChangeMessageVisibilityBatch") == [(back.handle, 30)]
        assert world.left(queue) == 1

    def test_what_hid_and_was_then_deleted_by_mistake_is_run_when_it_comes_back(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.settle(Hide(30))
        one.settle(Delete())
        events.wait(Hidden)
        world.come_back(queue)
        assert len(world.buffer) == 1
        assert events.of(FinishedBefore) == []

    def test_what_was_told_lost_is_no_longer_when_it_came_back_here(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.start()
        world.clock.advance(TIMEOUT)
        work_off(world.queue_consumer._heartbeat.batch_threads)
        assert one.lost
        (back,) = world.come_back(queue)
        assert one.current is back
        assert not back.lost
        one.settle(Hide(30))
        assert events.wait(Hidden) == [Hidden(back.facts, 30)]

    def test_an_extension_of_the_old_handle_that_is_refused_then_is_no_loss(self, make, events):
        world = make()
        queue = world.queue()
        (one,) = world.deliveries(queue, "a")
        one.start()
        one.on_lost = lambda _: pytest.fail("it is held")
        came = []

        def come_back():
            world.sqs.meanwhile = lambda: None
            came.extend(world.come_back(queue))
            raise ReceiptHandleInvalidError("stale")

        world.sqs.meanwhile = come_back
        world.extend()
        assert one.current is came[0]
        assert events.of(Lost) == []
        assert not one.current.lost

    def test_a_wish_is_heard_although_its_message_comes_back(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.start()
        one.holder.ledger.request_extension(
            one, world.clock.monotonic() + TIMEOUT + 300, world.clock.monotonic()
        )
        (back,) = world.come_back(queue)
        work_off(world.queue_consumer._heartbeat.batch_threads)
        assert world.handles("ChangeMessageVisibilityBatch") == [(back.handle, 300)]

    def test_what_was_finished_is_deleted_with_the_new_handle(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        world.sqs.fail_next("DeleteMessageBatch", ReceiptHandleInvalidError("stale"))
        one.settle(Delete())
        events.wait(Lost)
        world.come_back(queue)
        assert len(events.wait(FinishedBefore)) == 1
        events.wait(Deleted)
        assert len(world.buffer) == 0
        assert (world.queue_consumer.capacity.held, len(world.queue_consumer.ledger), world.left(queue)) == (
            0,
            0,
            0,
        )

    def test_in_the_inbox_it_may_come_back_at_the_moment_it_is_found_lapsed(self, world, queue):
        handed = []
        world.consume(queue, "a", hand_over=lambda payload: handed.append(world.delivery(payload)))
        assert world.buffer.wait(SOON)
        world.wait_for_sleep(queue)
        came = self.come_back_before_it_lapses(world, queue)
        world.buffer.hand_over(world.clock)
        assert [one.current for one in handed] == came
        assert world.queue_consumer.ledger.all() == came
        assert handed[0].start()

    @pytest.mark.parametrize("begin", ["start", "dispatch"])
    def test_it_may_come_back_at_the_moment_a_pool_finds_it_lapsed(self, world, queue, begin):
        (one,) = world.deliveries(queue, "a")
        came = self.come_back_before_it_lapses(world, queue)
        assert getattr(one, begin)()
        assert [one.current] == came == world.queue_consumer.ledger.all()
        assert world.queue_consumer.ledger.unstarted() == []

    def come_back_before_it_lapses(self, world, queue):
        """Its time is up, and it comes back right before whoever sees that lets it go; what came back."""
        came = []
        settle = world.queue_consumer.settle

        def settle_too_late(delivery, settlement):
            world.queue_consumer.settle = settle
            came.extend(world.come_back(queue))
            return settle(delivery, settlement)

        world.clock.advance(TIMEOUT)
        world.queue_consumer.settle = settle_too_late
        return came

    def test_it_may_be_finished_while_it_comes_back(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.start()
        check = world.redeliveries.check

        def finish_first(delivery):
            one.settle(Delete())
            return check(delivery)

        world.redeliveries.check = finish_first
        world.come_back(queue)
        events.wait(Deleted, 2)
        assert len(world.buffer) == 0
        assert (world.queue_consumer.capacity.held, len(world.queue_consumer.ledger), world.left(queue)) == (
            0,
            0,
            0,
        )

    def test_it_may_be_hidden_while_it_comes_back_and_then_is_run_again(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.start()
        check = world.redeliveries.check

        def hide_first(delivery):
            one.settle(Hide(30))
            return check(delivery)

        world.redeliveries.check = hide_first
        (back,) = world.come_back(queue)
        assert len(world.buffer) == 1
        assert world.queue_consumer.ledger.all() == [back]
        assert world.queue_consumer.capacity.held == 1

    def test_to_another_depot_of_the_process_it_moves(self, world, queue, events):
        (one,) = world.deliveries(queue, "a")
        one.start()
        world.queue_consumer.close()
        other = world.new_queue_consumer()
        other.consume(world.queue("elsewhere"), world.handed.append)
        (back,) = world.come_back(queue, other)
        assert events.of(Superseded) == [Superseded(back.facts)]
        assert (world.queue_consumer.capacity.held, len(world.queue_consumer.ledger)) == (0, 0)
        assert (other.capacity.held, other.ledger.all()) == (1, [back])
        one.settle(Delete())
        events.wait(Deleted)
        assert world.handles("DeleteMessageBatch") == [back.handle]
        assert (other.capacity.held, world.left(queue)) == (0, 0)

    def test_what_waits_in_the_inbox_of_a_depot_that_closes_is_given_back_by_the_other(
        self, world, queue, events
    ):
        world.consume(queue, "a")
        assert world.buffer.wait(SOON)
        world.wait_for_sleep(queue)
        other = world.new_queue_consumer()
        other.consume(world.queue("elsewhere"), world.handed.append)
        (back,) = world.come_back(queue, other)
        world.queue_consumer.close()
        assert events.wait(Released) == [Released(back.facts)]
        assert (other.capacity.held, len(other.ledger), len(world.buffer)) == (0, 0, 0)

    def test_what_lapsed_in_the_inbox_is_let_go_by_the_depot_that_has_it(self, world, queue, events):
        world.consume(queue, "a")
        assert world.buffer.wait(SOON)
        world.wait_for_sleep(queue)
        other = world.new_queue_consumer()
        other.consume(world.queue("elsewhere"), world.handed.append)
        world.come_back(queue, other)
        world.clock.advance(TIMEOUT)
        world.buffer.hand_over(world.clock)
        assert world.handed == []
        assert (other.capacity.held, len(other.ledger)) == (0, 0)
