"""One queue's polling: as much as there is room for, when the schedule says so, and no error ends it."""

from __future__ import annotations

import itertools
import queue as queues
import threading
from contextlib import suppress

import pytest
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.receive.receiver import (
    AS_GOOD_AS_FULL,
    AT_ONCE,
    MAX_PARALLEL,
    MOST_THREADS,
    NO_HELP_SECONDS,
    Receiver,
)
from celery_sqs_visibility.delivery.supervisor import HUNG_AFTER_SECONDS
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ThrottledError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.polling import IMMINENT, PollSchedule

OPTIONS = ReceiveOptions(visibility_timeout=30, system_attributes=("All",))
LONG = 3600.0  # a sleep that only something else than its end can end


class World:
    def __init__(self, schedule=None, name="q", prefetch_count=10):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self.queue = Queue(name, self.sqs.create_queue(name, attributes, {}), self.sqs)
        self.capacity = ReceiveCapacity(0.0, self.clock)
        self.capacity.prefetch_count = prefetch_count
        self.arrived = queues.SimpleQueue()
        self.on_arrival = lambda: None
        self.receiver = Receiver(
            self.queue,
            self.capacity,
            schedule or PollSchedule(LONG, LONG),
            20,
            OPTIONS,
            self.clock,
            self.take,
        )

    def take(self, queue, messages, called, returned):
        self.arrived.put((queue, [message["Body"] for message in messages], called, returned))
        self.on_arrival()

    def send(self, *bodies):
        for body in bodies:
            group = {"group_id": "g", "deduplication_id": body} if self.queue.fifo else {}
            self.sqs.send(self.queue.url, OutgoingMessage(body, **group))

    def poll(self, wait=0):
        self.capacity.join()
        return self.receiver.poll(self.capacity.reserve("q", 0), wait=wait)

    def bodies(self):
        """What arrives next; bounded."""
        return self.arrived.get(timeout=SOON)[1]

    def wait_for_sleep(self):
        """Until the one thread that polls does not, and would not before it is woken."""
        wait_until(lambda: self.receiver._changed._waiters, SOON, "the receiver to sleep")


@pytest.fixture
def world():
    return World()


@pytest.fixture
def running():
    """Start receivers that are stopped after the test."""
    worlds = []

    def start(world):
        worlds.append(world)
        world.receiver.start()
        return world

    yield start
    for world in worlds:
        world.receiver.stop()
        world.capacity.prefetch_count = 1000  # nobody is left waiting for room
        for thread in list(world.receiver._threads):
            thread.join(SOON)


def receives(world):
    return [arguments for action, arguments in world.sqs.calls if action == "ReceiveMessage"]


def test_a_poll_asks_for_what_is_reserved_with_the_options_of_the_queue(world):
    world.capacity.prefetch_count = 3
    world.poll(wait=7)
    (call,) = receives(world)
    assert (call["max_messages"], call["wait"], call["options"]) == (3, 7, OPTIONS)


def test_a_poll_hands_on_what_it_brought_with_the_instants_around_the_call(world):
    world.send("a", "b")
    assert world.poll() == 2
    now = world.clock.monotonic()
    assert world.arrived.get(timeout=0) == (world.queue, ["a", "b"], now, now)
    assert world.capacity.held == 2


def test_an_empty_poll_hands_on_nothing_and_gives_its_room_back(world):
    assert world.poll() == 0
    assert world.arrived.empty()
    assert world.capacity.held == 0
    assert world.capacity.reserve("q", 0).messages == 10


@pytest.mark.parametrize("error", [UnavailableError("network"), AccessDeniedError("no"), RuntimeError("bug")])
def test_a_failed_poll_gives_its_room_back(world, error):
    world.sqs.fail_next("ReceiveMessage", error)
    with suppress(RuntimeError):  # the thread's loop logs it and goes on
        assert world.poll() == 0
    assert world.capacity.held == 0
    assert world.capacity.reserve("q", 0).messages == 10


def test_trouble_is_told_once_for_each_kind_and_so_is_its_end(world, caplog):
    for error in (ThrottledError("slow"), ThrottledError("slow"), UnavailableError("network")):
        world.sqs.fail_next("ReceiveMessage", error)
        world.poll()
    world.poll()
    world.poll()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot receive from SQS and will try again: slow (queue=q)",
        "cannot receive from SQS and will try again: network (queue=q)",
        "receives from SQS again, after 3 failures (queue=q)",
    ]


def test_a_poll_whose_messages_nobody_could_take_is_over_too(world):
    def broken():
        raise RuntimeError("a bug")

    world.on_arrival = broken
    world.send("a")
    with pytest.raises(RuntimeError):
        world.poll()
    assert world.receiver.settle_down(0)


def test_settling_down_waits_for_polls_in_flight_and_no_longer(world):
    assert world.receiver.settle_down(world.clock.monotonic() + 100)
    during = []
    world.on_arrival = lambda: during.append(world.receiver.settle_down(0))
    world.send("a")
    world.poll()
    assert during == [False]
    assert world.receiver.settle_down(0)


def test_a_receiver_polls_at_once_and_then_sleeps(running, world):
    world.send("a")
    running(world)
    assert world.bodies() == ["a"]


def test_starting_twice_is_harmless(running, world):
    running(world)
    world.receiver.start()
    assert len(world.receiver._threads) <= 1


def test_a_message_known_to_come_back_ends_the_sleep(running):
    world = running(World())
    world.wait_for_sleep()
    world.send("a")
    world.receiver.expect("a", world.clock.monotonic())
    assert world.bodies() == ["a"]


class Racing(PollSchedule):
    """A message is hidden at the very moment at which a receiver, having looked, goes to sleep."""

    raced = False

    def next_poll(self):
        seen = super().next_poll()
        if seen > 1000 and not self.raced:
            self.raced = True
            self.expect("a", 1000.0)
            self.raced_at_last()
        return seen

    def raced_at_last(self):
        """A hook for the test."""


def test_a_message_hidden_while_a_receiver_goes_to_sleep_is_not_slept_past(running):
    schedule = Racing(LONG, LONG)
    world = World(schedule)
    schedule.raced_at_last = lambda: world.send("a")
    running(world)
    assert world.bodies() == ["a"]


def test_no_error_ends_the_polling(running, caplog):
    world = World(PollSchedule(0, 0))
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.sqs.fail_next("ReceiveMessage", RuntimeError("a bug"))
    world.send("a")
    running(world)
    assert world.bodies() == ["a"]
    assert "receiving stumbled and goes on" in caplog.text


def test_full_batches_call_for_help(running):
    world = World(prefetch_count=1000)
    batches = itertools.count(1)
    together = threading.Barrier(2)  # the second batch and the third arrive in two threads
    met = queues.SimpleQueue()

    def meet():
        if next(batches) in {2, 3}:
            met.put(together.wait(SOON))

    world.on_arrival = meet
    world.send(*map(str, range(30)))
    running(world)
    assert sorted(met.get(timeout=SOON) for _ in range(2)) == [0, 1]


@pytest.mark.parametrize(
    ("most", "seconds", "helped"),
    [(AS_GOOD_AS_FULL, 0.1, True), (AS_GOOD_AS_FULL - 1, 0.1, False), (9, AT_ONCE, False), (10, 15, True)],
    ids=["there is more", "that was all", "it was waited for", "waited for, and there is more"],
)
def test_where_an_answer_came_at_once_fewer_than_ten_call_for_help(world, most, seconds, helped):
    receive, calls = world.sqs.receive, []

    def receive_fewer(url, messages, wait, options):
        world.clock.advance(seconds)
        return receive(url, min(messages, most), wait, options)

    world.sqs.receive = receive_fewer
    world.receiver._add_poller = lambda: calls.append(True)
    world.send(*map(str, range(10)))
    world.receiver._turn()
    assert bool(calls) == helped


def test_help_has_a_limit(running):
    world = World(prefetch_count=1000)
    busy = set()
    world.on_arrival = lambda: busy.add(threading.current_thread())
    world.send(*map(str, range(300)))
    running(world)
    seen = [body for _ in range(30) for body in world.bodies()]
    assert len(set(seen)) == 300
    assert len(world.receiver._threads) <= MAX_PARALLEL


@pytest.mark.parametrize(("back_in", "wait"), [(0, 20), (IMMINENT / 2, 0), (IMMINENT * 2, 20)])
def test_what_comes_back_in_a_moment_is_not_left_to_a_long_poll(running, back_in, wait):
    world = World(schedule=PollSchedule(0, 0))
    asked = queues.SimpleQueue()

    def asked_once(_url, _messages, wait, _options):
        asked.put(wait)
        world.receiver.stop()
        return []

    world.sqs.receive = asked_once
    world.receiver.expect("a", world.clock.monotonic() + back_in)
    running(world)
    assert asked.get(timeout=SOON) == wait


class LongPoll:
    """In place of receive: a long poll waits until the test lets it go, a short one brings messages."""

    def __init__(self, world):
        self.world = world
        self.receive = world.sqs.receive
        world.sqs.receive = self
        self.asked = queues.SimpleQueue()
        self.let_go = threading.Event()

    def __call__(self, url, messages, wait, options):
        self.asked.put(wait)
        if wait:
            assert self.let_go.wait(SOON)
            return []
        return self.receive(url, messages, 0, options)


@pytest.fixture
def long_poll(running):
    world = World(schedule=PollSchedule(0, 0), prefetch_count=20)
    poll = LongPoll(world)
    running(world)
    assert poll.asked.get(timeout=SOON) == 20
    yield poll
    world.receiver.stop()
    poll.let_go.set()


def test_what_comes_back_while_a_long_poll_waits_is_asked_for_beside_it(long_poll):
    world = long_poll.world
    world.send("back")
    world.receiver.expect("back", world.clock.monotonic())
    assert long_poll.asked.get(timeout=SOON) == 0
    assert world.bodies() == ["back"]
    world.receiver.expect("gone elsewhere", world.clock.monotonic())
    assert long_poll.asked.get(timeout=SOON) == 0
    with pytest.raises(queues.Empty):  # that one is left to the long poll
        long_poll.asked.get(timeout=0.4)


def test_when_the_long_poll_is_over_nobody_stands_in(long_poll):
    world = long_poll.world
    world.receiver.expect("later", world.clock.monotonic() + 3600)
    assert len(world.receiver._threads) == 2
    world.receiver.stop()
    long_poll.let_go.set()
    for thread in list(world.receiver._threads):
        thread.join(SOON)
    assert world.receiver._threads == set()


def test_without_room_the_long_poll_has_to_bring_it(running):
    world = World(schedule=PollSchedule(0, 0), prefetch_count=2)
    poll = LongPoll(world)
    running(world)
    assert poll.asked.get(timeout=SOON) == 20
    world.receiver.expect("back", world.clock.monotonic())
    with pytest.raises(queues.Empty):
        poll.asked.get(timeout=0.2)
    world.receiver.stop()
    poll.let_go.set()


def test_a_fifo_queue_is_asked_for_one_message_a_receive(running):
    world = World(name="q.fifo", prefetch_count=1000)
    world.send(*map(str, range(20)))
    running(world)
    assert world.bodies() == ["0"]
    wait_until(lambda: len(receives(world)) >= 2, SOON, "a look for another group")
    assert {call["max_messages"] for call in receives(world)} == {1}
    assert world.arrived.empty(), "the group waits for its first"


def test_several_polls_bring_several_groups_of_a_fifo_queue(running):
    world = World(name="q.fifo", prefetch_count=1000)
    together = threading.Barrier(2)  # the second message and the third arrive in two threads
    met = queues.SimpleQueue()
    number = itertools.count(1)

    def meet():
        if next(number) in {2, 3}:
            met.put(together.wait(SOON))

    world.on_arrival = meet
    for group in "abcdef":
        world.sqs.send(world.queue.url, OutgoingMessage(group, group_id=group, deduplication_id=group))
    running(world)
    assert sorted(met.get(timeout=SOON) for _ in range(2)) == [0, 1]
    wait_until(lambda: world.capacity.held == 6, SOON, "the first of each group")


def test_of_a_fifo_queue_no_more_is_held_than_can_start():
    world = World(name="q.fifo", prefetch_count=2)
    for group in "abcdef":
        world.sqs.send(world.queue.url, OutgoingMessage(group, group_id=group, deduplication_id=group))
    world.capacity.join()
    for held in (1, 2):
        world.receiver.poll(world.receiver._reserve(0), wait=0)
        assert world.capacity.held == held
    assert world.receiver._reserve(0) is None
    world.capacity.gave_back(began=0.0, fifo=True)
    assert world.receiver._reserve(0).messages == 1


def test_of_few_groups_a_second_poll_is_tried_once_a_second():
    world = World(name="q.fifo", prefetch_count=10)
    world.receiver._add_poller = world.receiver._help
    world.capacity.join()
    for number in range(3):
        world.send(str(number))
        world.receiver._turn()
        ((handle),) = [message.handle for message in world.sqs._queues[world.queue.url].messages]
        world.sqs.delete(world.queue.url, [handle])
    assert len(receives(world)) == 3 + 1
    world.clock.advance(NO_HELP_SECONDS)
    world.send("later")
    world.receiver._turn()
    assert len(receives(world)) == 3 + 1 + 2


def test_a_retry_does_not_wait_for_the_turn_of_its_queue(running):
    world = World(PollSchedule(0, 0), prefetch_count=2)
    for name in "abcdefghijklmnopqrst":
        world.capacity.join()
        world.capacity.line_up(f"another: {name}")
    running(world)
    wait_until(lambda: world.capacity._line[-1].queue == "q", SOON, "the queue to wait for its turn")
    world.send("a")
    world.receiver.expect("a", world.clock.monotonic())
    world.receiver.replace_stuck(world.clock.monotonic())
    assert world.bodies() == ["a"]


def attempts(world):
    return [call["options"].attempt_id for call in receives(world)]


def poll_fifo(world):
    world.receiver.poll(world.receiver._reserve(0), wait=0)


def test_a_fifo_receive_that_got_no_answer_is_tried_again_under_its_id():
    world = World(name="q.fifo")
    world.capacity.join()
    for error in (UnavailableError("network"), UnrecognizedResponseError("gateway")):
        world.sqs.fail_next("ReceiveMessage", error)
        poll_fifo(world)
    poll_fifo(world)
    poll_fifo(world)
    first, second, third, fourth = attempts(world)
    assert first == second == third, "until it is answered"
    assert fourth != first
    assert None not in attempts(world)


@pytest.mark.parametrize("error", [ThrottledError("slow"), AccessDeniedError("no")])
def test_a_refusal_is_an_answer(error):
    world = World(name="q.fifo")
    world.capacity.join()
    world.sqs.fail_next("ReceiveMessage", error)
    poll_fifo(world)
    poll_fifo(world)
    assert len(set(attempts(world))) == 2


def test_an_id_is_not_used_again_when_others_may_have_its_messages():
    world = World(name="q.fifo")
    world.capacity.join()
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    poll_fifo(world)
    world.clock.advance(OPTIONS.visibility_timeout)
    poll_fifo(world)
    assert len(set(attempts(world))) == 2


def test_what_a_lost_answer_brought_is_brought_again():
    world = World(name="q.fifo")
    world.capacity.join()
    world.send("a")
    receive = world.sqs.receive

    def lose_the_answer(*arguments):
        receive(*arguments)
        world.sqs.receive = receive
        raise UnavailableError("connection reset")

    world.sqs.receive = lose_the_answer
    poll_fifo(world)
    assert world.arrived.empty()
    poll_fifo(world)
    assert world.bodies() == ["a"]


def test_a_standard_queue_has_no_attempts(world):
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.poll()
    world.poll()
    assert attempts(world) == [None, None]


def test_a_stopped_receiver_ends(world):
    world.receiver.start()
    threads = list(world.receiver._threads)
    world.receiver.stop()
    world.receiver.stop()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


def test_what_a_poll_brings_after_the_stop_still_arrives(world):
    world.send("a")
    receive = world.sqs.receive

    class StoppedMeanwhile:
        """SQS, while whose answer is under way the receiver is stopped."""

        def receive(self, *arguments):
            world.receiver.stop()
            return receive(*arguments)

    world.receiver.queue = Queue("q", world.queue.url, StoppedMeanwhile())
    world.poll()
    assert world.bodies() == ["a"]


def test_after_the_stop_no_poll_begins(world):
    world.send("a")
    world.receiver.stop()
    assert world.poll() == 0
    assert world.capacity.reserve("q", 0).messages == 10


def test_stop_before_start_leaves_the_others_their_share(world):
    world.receiver.stop()
    world.receiver.start()
    for _ in range(2):
        world.capacity.join()
    assert world.capacity.reserve("q", 0).messages == 5


class Hanging:
    """SQS, of whose calls the first so many get no answer until the test lets them, the last by itself."""

    def __init__(self, sqs, calls):
        self.sqs = sqs
        self.calls = calls
        self.hang = queues.SimpleQueue()  # the waits asked for, as calls begin to hang
        self.let_go = threading.Event()
        self.let_last_go = self.let_go
        self.doubts = 0

    def receive(self, url, messages, wait, options):
        if self.calls:
            self.calls -= 1
            let_go = self.let_go if self.calls else self.let_last_go
            self.hang.put(wait)
            assert let_go.wait(SOON)
        return self.sqs.receive(url, messages, 0, options)

    def discard_idle_connections(self):
        self.doubts += 1


def hang(world, calls):
    hanging = Hanging(world.sqs, calls)
    world.receiver.queue = Queue("q", world.queue.url, hanging)
    return hanging


def pass_time(world, seconds):
    """Turn the clock, and have the supervisor look."""
    world.clock.advance(seconds)
    world.receiver.replace_stuck(world.clock.monotonic())


def test_a_thread_that_hangs_is_relieved_again_and_again_until_there_is_an_answer(running, caplog):
    world = World(prefetch_count=1)  # all the room there is hangs with it
    hanging = hang(world, 3)
    running(world)
    assert hanging.hang.get(timeout=SOON) == 20
    for _ in range(2):
        pass_time(world, 30)
        assert hanging.hang.get(timeout=SOON) == 0, "who relieves another asks for an answer at once"
    world.send("a")
    pass_time(world, 30)
    assert world.bodies() == ["a"]
    assert hanging.doubts == 3
    world.send("b")
    hanging.let_go.set()  # a late answer still counts, room or not
    assert world.bodies() == ["b"]
    assert world.capacity.held == 2
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "cannot receive from SQS and will try again: ReceiveMessage gets no answer (queue=q)",
        "receives from SQS again, after 3 failures (queue=q)",
    ]


def hang_all(world, let_last_go=None):
    """Let one poll after the other hang, until nobody takes the latest one's place; SQS, and that thread."""
    hanging = hang(world, MOST_THREADS)
    hanging.let_last_go = let_last_go or hanging.let_go
    world.receiver.start()
    for _ in range(MOST_THREADS):
        hanging.hang.get(timeout=SOON)
        pass_time(world, 30)
    return hanging, world.receiver._poller


def wait_for_others_to_end(world, thread):
    for other in world.receiver._threads - {thread}:
        other.join(SOON)
    assert world.receiver._threads == {thread}


def test_threads_that_hang_are_bounded_and_polling_goes_on_when_they_return(running):
    world = World()
    hanging, latest = hang_all(world)
    running(world)
    assert len(world.receiver._threads) == MOST_THREADS
    world.send("a")
    hanging.let_go.set()
    assert world.bodies() == ["a"]
    wait_for_others_to_end(world, latest)
    world.wait_for_sleep()
    world.send("b")
    world.receiver.expect("b", world.clock.monotonic())
    assert world.bodies() == ["b"]


def test_where_the_latest_of_them_does_not_return_another_takes_its_place(running, caplog):
    world = World()
    hanging, latest = hang_all(world, threading.Event())
    running(world)
    hanging.let_go.set()
    wait_for_others_to_end(world, latest)
    world.send("a")
    world.receiver.expect("a", world.clock.monotonic())
    pass_time(world, 1)
    assert world.bodies() == ["a"]
    hanging.let_last_go.set()
    assert caplog.records[-1].getMessage() == "a thread that polls 'q' hangs: another takes its place"


def test_who_was_relieved_ends(running):
    world = World()
    hanging = hang(world, 1)
    running(world)
    hanging.hang.get(timeout=SOON)
    (relieved,) = world.receiver._threads
    world.send("a")
    pass_time(world, 30)
    assert world.bodies() == ["a"]
    hanging.let_go.set()
    relieved.join(SOON)
    assert not relieved.is_alive()
    assert len(world.receiver._threads) == 1


def test_an_answer_in_time_relieves_nobody(running, world):
    hanging = hang(world, 1)
    running(world)
    hanging.hang.get(timeout=SOON)
    pass_time(world, 20)
    assert len(world.receiver._threads) == 1
    hanging.let_go.set()
    assert hanging.doubts == 0


#: pytest says so where a thread ends with an exception.
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def test_where_no_thread_can_be_started_none_is_counted_and_the_next_ones_are(long_poll, monkeypatch, caplog):
    def no_more(_thread):
        raise RuntimeError("can't start new thread")

    receiver = long_poll.world.receiver
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_more)
        receiver.expect("m", 0.0)
    assert receiver._stands_in is None
    assert len(receiver._threads) == 1
    assert caplog.messages == ["a thread that polls 'q' could not be started"]
    receiver.expect("m", 0.0)
    assert long_poll.asked.get(timeout=SOON) == 0


@DIES
def test_a_thread_that_died_is_replaced(running, caplog):
    world = World()
    may_die = threading.Event()

    def die(*_):
        assert may_die.wait(SOON)
        raise SystemExit

    world.receiver._arrived = die
    world.send("a")
    running(world)
    (before,) = world.receiver._threads
    may_die.set()
    before.join(SOON)
    world.receiver.replace_stuck(world.clock.monotonic())
    (after,) = world.receiver._threads
    assert after is not before
    assert [record.getMessage() for record in caplog.records] == [
        "a thread that polls 'q' died: another takes its place"
    ]


def test_a_thread_that_hangs_with_what_it_brought_is_replaced(running, caplog):
    world = World()
    hangs, let_go = threading.Event(), threading.Event()

    def hang_once(*_):
        if not hangs.is_set():
            hangs.set()
            assert let_go.wait(SOON)

    world.receiver._arrived = hang_once
    world.send("a")
    running(world)
    assert hangs.wait(SOON)
    held = world.capacity.held
    world.receiver.replace_stuck(world.clock.monotonic())
    assert len(world.receiver._threads) == 1
    pass_time(world, HUNG_AFTER_SECONDS + 1)
    assert len(world.receiver._threads) == 2
    assert world.capacity.held == held
    let_go.set()
    assert [record.getMessage() for record in caplog.records] == [
        "a thread that polls 'q' hangs: another takes its place"
    ]


def test_an_idle_receiver_at_the_defaults_polls_three_times_a_minute(running):
    world = World(PollSchedule(0, 0))
    hour_is_over = threading.Event()
    receive = world.sqs.receive

    def long_poll(queue_url, max_messages, wait, options):
        """Nothing comes, and that takes as long as was asked for."""
        if hour_is_over.is_set() or world.clock.monotonic() >= 1000 + 3600:
            hour_is_over.set()
            world.receiver.stop()
            return []
        messages = receive(queue_url, max_messages, 0, options)
        world.clock.advance(wait)
        return messages

    world.sqs.receive = long_poll
    running(world)
    assert hour_is_over.wait(SOON)
    assert len(receives(world)) == 60 * 3
