"""The polling of one queue: requests on the pump's threads, of which some help, hang or die."""

import itertools
import queue as queues
import threading
from dataclasses import replace

import pytest
from support.clock import FakeClock
from support.factories import EVERYTHING, FilledCapacity, every_queue, send, sqs_queue
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.core.polls import MAX_PARALLEL_POLLS, MAX_POLLS, PollState
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.receiver import Receiver
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    AnswerLostError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import ReceiveEnded, subscribe
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS

LONG = 3600.0  # a sleep that only something else than its end can end
NUMBERS = itertools.count(1)


class World:
    """A receiver, and all that is around it."""

    def __init__(self, prefetch_count=10, interval=LONG, suffix="", threads=True):
        self.clock = FakeClock()
        self.queue = sqs_queue(f"q{next(NUMBERS)}{suffix}", FakeSQS(self.clock))
        self.sqs, self.name = self.queue.sqs, self.queue.name
        self.capacity = FilledCapacity(0.0, self.clock)
        self.capacity.prefetch_count = prefetch_count
        self.arrived = queues.SimpleQueue()
        self.on_arrival = lambda: None
        self.over = []
        self.let_go = threading.Event()
        self.pump = Pump(self.clock)
        self.receiver = Receiver(
            self.queue,
            self.capacity,
            every_queue(30, polling_interval=interval, polling_interval_max=interval)(self.name),
            EVERYTHING,
            self.take,
            self.pump,
            self.over.append,
        )
        if not threads:
            self.receiver.lane.start = lambda: None

    def take(self, _queue, messages, called, returned):
        with self.pump.lock:
            self.capacity.hold(len(messages), queue=self.name, fifo=self.queue.fifo)
        self.times = called, returned
        self.arrived.put([message["Body"] for message in messages])
        self.on_arrival()

    def bodies(self):
        return self.arrived.get(timeout=SOON)

    def threads(self):
        return len(self.pump._threads)

    def polls(self):
        return self.receiver.in_flight

    def wait_for_polls(self, number):
        wait_until(lambda: self.polls() == number, SOON, f"{number} polls")

    def look(self, seconds=0):
        """Let time pass, and have the supervisor look."""
        self.clock.advance(seconds)
        self.pump.replace_stuck(self.clock.monotonic())
        self.receiver.replace_stuck(self.clock.monotonic())

    def poll(self):
        """When one is due, make one poll on the test's thread."""
        due = self.receiver.due(self.clock.monotonic())
        self.clock.advance(max(0.0, due - self.clock.monotonic()))
        assert self.receiver.lane.send_next()

    def during_the_call(self, action):
        """Do something while the next request is under way, SQS having answered it."""
        receive = self.sqs.receive

        def receive_and_act(*arguments):
            self.sqs.receive = receive
            messages = receive(*arguments)
            action()
            return messages

        self.sqs.receive = receive_and_act

    def receives(self):
        return [arguments for action, arguments in self.sqs.calls if action == "ReceiveMessage"]

    def facts(self, later=0.0):
        facts = self.receiver.facts(self.clock.monotonic() + later)
        return facts.late, facts.accepted


@pytest.fixture
def receiving():
    """Make receivers, and all that is around them; they are stopped after the test."""
    worlds = []

    def make(**settings):
        worlds.append(World(**settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.receiver.stop()
        world.let_go.set()
        wait_until(lambda world=world: not world.threads(), SOON, "the pump's threads to end")


@pytest.fixture
def world(receiving):
    """Its polls are made on the test's thread, by `poll`."""
    world = receiving(threads=False)
    world.receiver.start()
    return world


# One poll.


def test_a_poll_asks_for_what_is_reserved_and_passes_it_on_with_the_instants_around_the_call(receiving):
    world = receiving(threads=False, prefetch_count=3)
    world.receiver.start()
    send(world.queue, "a", "b")
    world.during_the_call(lambda: world.clock.advance(3))
    world.poll()
    (call,) = world.receives()
    assert (call["max_messages"], call["wait"], call["options"]) == (
        3,
        20,
        replace(EVERYTHING, visibility_timeout=30),
    )
    assert world.bodies() == ["a", "b"]
    assert world.times == (world.clock.monotonic() - 3, world.clock.monotonic())
    assert world.capacity.held == 2


@pytest.mark.parametrize("where", ["in the request", "as messages are taken"])
def test_a_bug_ends_the_poll_too_and_takes_no_capacity(world, where, caplog):
    def broken():
        raise RuntimeError("a bug")

    if where == "in the request":
        world.sqs.fail_next("ReceiveMessage", RuntimeError("a bug"))
    world.on_arrival = broken
    send(world.queue, "a")
    world.poll()
    assert caplog.messages == [
        f"unexpected error in a thread that polls '{world.name}'; continuing",
    ]
    assert world.receiver.wait_for_polls(0)
    world.receiver.stop()
    assert world.capacity.reserve("q").messages == 10 - world.capacity.held


def test_an_outage_is_logged_once_for_each_kind_and_so_is_its_end(world, caplog):
    for error in (ThrottledError("slow"), ThrottledError("slow"), UnavailableError("network")):
        world.sqs.fail_next("ReceiveMessage", error)
        world.poll()
    world.poll()
    world.poll()
    first, second, end = [record.getMessage() for record in caplog.records]
    assert first == f"cannot receive from SQS: slow; trying again (queue={world.name})"
    assert second == f"cannot receive from SQS: network; trying again (queue={world.name})"
    assert end.startswith("can receive from SQS again after ")
    assert end.endswith(f"(queue={world.name} failures=3)")


def test_a_queue_that_was_deleted_is_told_with_what_makes_it_anew(world, caplog):
    world.sqs.fail_next("ReceiveMessage", QueueDoesNotExistError("it does not exist."))
    world.poll()
    (record,) = caplog.records
    assert record.getMessage() == (
        "cannot receive from SQS: it does not exist; it was deleted, or its server has forgotten it: "
        "`celery -A ... sqs queues create` makes it anew with its dead-letter queue, and the worker receives "
        f"from it without a restart; trying again (queue={world.name})"
    )


def test_polls_that_a_proxy_cuts_are_no_outage_and_are_told_once(world, caplog):
    def cut(*_):
        world.clock.advance(8)
        raise AnswerLostError("Connection was closed before we received a valid response")

    receive = world.sqs.receive
    for _ in range(4):
        world.sqs.receive = cut
        world.poll()
        world.sqs.receive = receive
        world.poll()
    assert world.receiver.facts(world.clock.monotonic()).error == ""
    (told,) = caplog.messages
    assert "are cut off" in told
    assert "the latest after 8 s" in told
    assert "set wait_time_seconds to less" in told


def test_a_poll_that_brings_none_of_the_hidden_messages_is_told_too(world):
    world.poll()
    assert world.arrived.empty()
    world.receiver.expect("m", world.clock.monotonic() + 2 * LONG)
    assert world.receiver.facts(world.clock.monotonic()).hidden == 1
    world.poll()
    assert world.bodies() == []


def test_one_waits_for_polls_in_flight_until_their_messages_are_taken_and_no_longer(world):
    assert world.receiver.wait_for_polls(world.clock.monotonic() + 100)
    during = []
    world.on_arrival = lambda: during.append(world.receiver.wait_for_polls(0))
    send(world.queue, "a")
    world.poll()
    assert during == [False]
    assert world.receiver.wait_for_polls(0)


def test_a_poll_in_flight_at_the_stop_still_brings_its_messages_and_none_begins_after_it(world):
    send(world.queue, "a")
    world.during_the_call(world.receiver.stop)
    world.poll()
    assert world.bodies() == ["a"]
    assert world.over == [world.queue], "once its last poll is over"
    assert not world.receiver.lane.send_next()


def test_a_receiver_that_sleeps_is_over_as_it_is_stopped(world):
    world.poll()
    world.receiver.stop()
    assert world.over == [world.queue]


def test_a_late_answer_is_told_and_its_messages_still_count(world, caplog):
    discarded = []
    world.sqs.discard_idle_connections = lambda: discarded.append(True)
    send(world.queue, "a", "b")
    world.during_the_call(lambda: (world.look(25), world.look()))
    world.poll()
    assert world.bodies() == ["a", "b"]
    assert discarded == [True]
    assert caplog.messages == [
        f"cannot receive from SQS: ReceiveMessage gets no answer; trying again (queue={world.name})"
    ]


def test_messages_of_a_lost_answer_of_a_fifo_queue_are_brought_again(receiving):
    def lose_the_answer():
        raise UnavailableError("connection reset")

    world = receiving(threads=False, suffix=".fifo")
    world.receiver.start()
    send(world.queue, "a")
    world.during_the_call(lose_the_answer)
    world.poll()
    assert world.arrived.empty()
    world.poll()
    assert world.bodies() == ["a"]


def test_how_full_a_receive_was_is_told_to_who_listens_and_nothing_of_one_that_failed(world):
    send(world.queue, "a", "b")
    heard = []
    end = subscribe(heard.append, ReceiveEnded)
    world.poll()
    world.sqs.fail_next("ReceiveMessage", AccessDeniedError("no"))
    world.poll()
    end()
    assert heard == [ReceiveEnded(world.name, 10, 2)]


def test_an_idle_receiver_at_the_defaults_polls_three_times_a_minute(receiving):
    world = receiving(threads=False, interval=0)
    receive = world.sqs.receive

    def long_poll(url, messages, wait, options):
        """Nothing comes, and that takes as long as was asked for."""
        world.clock.advance(wait)
        return receive(url, messages, 0, options)

    world.sqs.receive = long_poll
    world.receiver.start()
    until = world.clock.monotonic() + 3600
    while world.clock.monotonic() < until:
        world.poll()
    assert len(world.receives()) == 60 * 3


# Threads.


def test_a_receiver_polls_at_once_and_then_sleeps_until_it_is_stopped(receiving):
    world = receiving()
    send(world.queue, "a")
    for _ in range(2):
        world.receiver.start()
    assert world.bodies() == ["a"]
    world.wait_for_polls(0)
    for _ in range(2):
        world.receiver.stop()
    assert world.receiver.wait_for_polls(0)


def test_a_message_known_to_come_back_ends_the_sleep(receiving):
    world = receiving()
    world.receiver.start()
    wait_until(lambda: len(world.receives()) == 1 and not world.polls(), SOON, "it to sleep")
    send(world.queue, "a")
    world.receiver.expect("a", world.clock.monotonic())
    assert world.bodies() == ["a"]


def test_no_error_ends_the_polling(receiving):
    world = receiving(interval=0)
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.sqs.fail_next("ReceiveMessage", RuntimeError("a bug"))
    send(world.queue, "a")
    world.receiver.start()

    def came():
        world.look(3)  # past every pause
        return not world.arrived.empty()

    wait_until(came, SOON, "the message")


def test_stop_before_start_leaves_the_others_their_share(receiving):
    world = receiving()
    world.receiver.stop()
    world.receiver.start()
    for name in "ab":
        world.capacity.add_queue(name)
    assert world.capacity.reserve("q").messages == 5


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_full_batches_and_any_message_of_a_fifo_queue_have_a_helper(receiving, suffix):
    world = receiving(prefetch_count=1000, suffix=suffix)
    batches, met, together = itertools.count(1), queues.SimpleQueue(), threading.Barrier(2)

    def wait_for_the_other():
        if next(batches) in {2, 3}:
            met.put(together.wait(SOON))

    world.on_arrival = wait_for_the_other
    for number in range(30):
        send(world.queue, str(number), group=str(number))
    world.receiver.start()
    assert sorted(met.get(timeout=SOON) for _ in range(2)) == [0, 1]
    wait_until(lambda: world.capacity.held == 30, SOON, "all messages")


def test_helpers_have_a_limit(receiving):
    world = receiving(prefetch_count=1000)
    most = []
    world.on_arrival = lambda: most.append(world.polls())
    send(world.queue, *map(str, range(300)))
    world.receiver.start()
    assert len({body for _ in range(30) for body in world.bodies()}) == 300
    assert max(most) <= MAX_PARALLEL_POLLS


def test_a_fifo_queue_is_asked_for_one_message_a_receive(receiving):
    world = receiving(prefetch_count=1000, suffix=".fifo")
    send(world.queue, *map(str, range(20)), group="g")
    world.receiver.start()
    assert world.bodies() == ["0"]
    wait_until(lambda: len(world.receives()) >= 2, SOON, "a look for another group")
    assert {call["max_messages"] for call in world.receives()} == {1}
    assert world.arrived.empty(), "the group waits for its first"


# Polls that hang, and threads that die.


class Hanging:
    """A receive of which the first calls get no answer until the test lets them go, the last by itself."""

    def __init__(self, world, calls):
        self.world, self.calls = world, calls
        self.receive = world.sqs.receive
        self.hang = queues.SimpleQueue()  # the waits asked for, as calls begin to hang
        self.let_last_go = world.let_go
        world.sqs.receive = self

    def __call__(self, url, messages, wait, options):
        if self.calls:
            self.calls -= 1
            let_go = self.world.let_go if self.calls else self.let_last_go
            self.hang.put(wait)
            assert let_go.wait(SOON)
        return self.receive(url, messages, 0, options)


def test_another_takes_the_place_of_one_that_hangs_again_and_again_until_there_is_an_answer(
    receiving, caplog
):
    world = receiving(prefetch_count=1)  # all the capacity hangs with it
    hanging = Hanging(world, 3)
    world.receiver.start()
    assert hanging.hang.get(timeout=SOON) == 20
    world.look(20)
    assert world.polls() == 1, "an answer now would be in time"
    for seconds in (10, 30):
        world.look(seconds)
        assert hanging.hang.get(timeout=SOON) == 0, "the next asks for an answer at once"
    send(world.queue, "a")
    world.look(30)
    assert world.bodies() == ["a"]
    send(world.queue, "b")
    world.let_go.set()  # a late answer still counts, capacity or not
    assert world.bodies() == ["b"]
    world.wait_for_polls(0)
    assert world.capacity.held == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot receive from SQS: ReceiveMessage gets no answer; trying again (queue={world.name})",
        f"can receive from SQS again after 60 s (queue={world.name} failures=3)",
    ]


def hang_all(world):
    """Let one poll after the other hang, until none takes the latest one's place."""
    hanging = Hanging(world, MAX_POLLS)
    hanging.let_last_go = threading.Event()
    world.receiver.start()
    for _ in range(MAX_POLLS):
        hanging.hang.get(timeout=SOON)
        world.look(30)
    assert world.polls() == MAX_POLLS
    return hanging


def test_polls_that_hang_are_bounded_and_polling_goes_on_when_one_returns(receiving):
    world = receiving()
    hanging = hang_all(world)
    send(world.queue, "a")
    hanging.let_last_go.set()
    assert world.bodies() == ["a"]
    world.let_go.set()
    world.wait_for_polls(0)
    send(world.queue, "b")
    world.receiver.expect("b", world.clock.monotonic())
    assert world.bodies() == ["b"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of one that dies
@pytest.mark.parametrize("how", ["died", "hangs"])
def test_a_thread_that_died_or_hangs_with_its_messages_is_replaced(receiving, caplog, how):
    world = receiving()
    arrived = threading.Event()

    def stumble_once():
        if not arrived.is_set():
            arrived.set()
            assert world.let_go.wait(SOON)
            if how == "died":
                raise SystemExit

    world.on_arrival = stumble_once
    send(world.queue, "a")
    world.receiver.start()
    assert arrived.wait(SOON)
    (poll,) = world.receiver._polls.in_flight
    world.look()
    assert poll.state is PollState.ANSWERED
    if how == "died":
        world.let_go.set()
        wait_until(lambda: (world.look(), not world.polls())[1], SOON, "the poll to be given up")
    else:
        world.look(HUNG_AFTER_SECONDS + 1)
        assert poll.state is PollState.STUCK
    send(world.queue, "b")
    world.clock.advance(3)
    world.receiver.expect("b", world.clock.monotonic())
    world.bodies()
    assert world.bodies() == ["b"]
    assert caplog.messages == [f"a thread that polls '{world.name}' {how}; another takes its place"]


def test_where_no_thread_can_be_started_one_is_when_the_supervisor_looks(receiving, monkeypatch, caplog):
    world = receiving()

    def no_more(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_more)
        world.receiver.start()
        world.look(60)
        assert world.facts()[0] == 60
    assert set(caplog.messages) == {
        f"cannot start a thread that polls '{world.name}'; it is tried again in a moment"
    }
    send(world.queue, "a")
    world.look()
    assert world.bodies() == ["a"]


def test_a_receiver_that_hangs_with_its_messages_is_late_and_one_without_capacity_is_not(receiving):
    world = receiving(prefetch_count=1, interval=0)
    world.on_arrival = lambda: world.let_go.wait(SOON)
    send(world.queue, "a")
    world.receiver.start()
    assert world.bodies() == ["a"]
    assert world.facts(300)[0] > 250
    world.let_go.set()
    wait_until(lambda: world.facts(300)[0] == 0, SOON, "it to wait for capacity")


def test_what_polls_have_met_is_told_while_they_hang(receiving):
    world = receiving()
    hanging = Hanging(world, 2)
    world.receiver.start()
    hanging.hang.get(timeout=SOON)
    world.look(60)
    assert world.receiver.facts(0.0).accepted is False
    assert world.receiver.facts(0.0).error == "ReceiveMessage gets no answer"
