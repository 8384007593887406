"""The threads of one queue: one polls when the schedule says so, others help or take its place."""

from __future__ import annotations

import itertools
import queue as queues
import threading
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import RECEIVE_OPTIONS, FilledCapacity, send, sqs_queue
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.pump import HUNG_AFTER_SECONDS
from celery_sqs_visibility.delivery.receive import receiver as receiver_module
from celery_sqs_visibility.delivery.receive.receiver import (
    ANSWERED_AT_ONCE_SECONDS,
    HELPER_PAUSE_SECONDS,
    MAX_PARALLEL_POLLS,
    MAX_THREADS,
    NEARLY_FULL_BATCH,
    REFUSED_WITHIN_SECONDS,
    Receiver,
)
from celery_sqs_visibility.errors import AnswerLostError, UnavailableError
from celery_sqs_visibility.policy.polling import PollSchedule

LONG = 3600.0  # a sleep that only something else than its end can end
NUMBERS = itertools.count(1)


class ToldSchedule(PollSchedule):
    """Tells when the receiver is about to sleep: it has the lock then, and gives it up only asleep."""

    def __init__(self, interval, maximum):
        super().__init__(interval, maximum)
        self.sleeps = threading.Event()
        self.on_sleep = lambda: None

    def next_poll(self):
        at = super().next_poll()
        if at > 1000 + LONG / 2:
            on_sleep, self.on_sleep = self.on_sleep, lambda: None
            on_sleep()
            self.sleeps.set()
        return at


class ToldCapacity(FilledCapacity):
    """Tells which queue waits."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.waiting = queues.SimpleQueue()

    def add_waiter(self, queue, now, wake, *, fifo=False):
        waiter = super().add_waiter(queue, now, wake, fifo=fifo)
        self.waiting.put(queue)
        return waiter


@pytest.fixture
def receiving():
    """Make receivers, and all that is around them; they are stopped after the test."""
    worlds = []

    def make(prefetch_count=10, interval=LONG, suffix=""):
        clock = FakeClock()
        queue = sqs_queue(f"q{next(NUMBERS)}{suffix}", FakeSQS(clock))
        world = SimpleNamespace(clock=clock, queue=queue, sqs=queue.sqs, name=queue.name)
        world.schedule = ToldSchedule(interval, interval)
        world.capacity = ToldCapacity(0.0, clock)
        world.capacity.prefetch_count = prefetch_count
        world.arrived = queues.SimpleQueue()
        world.on_arrival = lambda: None

        def take(_queue, messages, _called, _returned):
            with world.lock:
                world.capacity.hold(len(messages), queue=queue.name, fifo=queue.fifo)
            world.arrived.put([message["Body"] for message in messages])
            world.on_arrival()

        world.lock = threading.Lock()
        world.receiver = Receiver(
            queue, world.capacity, world.schedule, 20, RECEIVE_OPTIONS, clock, take, world.lock
        )
        world.bodies = lambda: world.arrived.get(timeout=SOON)
        world.let_go = threading.Event()
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.receiver.stop()
        world.let_go.set()
        wait_for_threads(world, 0)


def threads(world):
    return [each for each in threading.enumerate() if each.name == f"sqs-receive-{world.name}"]


def wait_for_threads(world, count):
    wait_until(lambda: len(threads(world)) == count, SOON, f"{count} threads")


def wait_for_sleep(world):
    assert world.schedule.sleeps.wait(SOON)


def look(world, seconds=0):
    """Let time pass, and have the supervisor look."""
    world.clock.advance(seconds)
    world.receiver.replace_stuck(world.clock.monotonic())


def receives(world):
    return [arguments for action, arguments in world.sqs.calls if action == "ReceiveMessage"]


def test_a_receiver_polls_at_once_and_then_sleeps_until_it_is_stopped(receiving):
    world = receiving()
    send(world.queue, "a")
    for _ in range(2):  # again is harmless
        world.receiver.start()
    assert world.bodies() == ["a"]
    wait_for_sleep(world)
    assert len(threads(world)) == 1
    for _ in range(2):
        world.receiver.stop()
    wait_for_threads(world, 0)
    assert world.receiver.wait_for_polls(0)


@pytest.mark.parametrize("race", [False, True], ids=["while it sleeps", "as it goes to sleep"])
def test_a_message_known_to_come_back_ends_the_sleep(receiving, race):
    world = receiving()

    def hide_and_come_back():
        send(world.queue, "a")
        world.receiver.expect("a", world.clock.monotonic())

    if race:
        world.schedule.on_sleep = threading.Thread(target=hide_and_come_back, daemon=True).start
    world.receiver.start()
    wait_for_sleep(world)
    if not race:
        hide_and_come_back()
    assert world.bodies() == ["a"]


def test_no_error_ends_the_polling(receiving, caplog):
    world = receiving(interval=0)
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.sqs.fail_next("ReceiveMessage", RuntimeError("a bug"))
    send(world.queue, "a")
    world.receiver.start()
    assert world.bodies() == ["a"]
    assert f"unexpected error while polling '{world.name}'; continuing" in caplog.text


def test_polls_that_a_proxy_cuts_are_no_outage_and_are_told_once(receiving, caplog):
    world = receiving(interval=0)
    polls, was_told = itertools.count(1), threading.Event()

    def cut_after_eight_seconds(_queue_url, _max_messages, wait, _options):
        """Nothing comes, and a longer poll is cut off."""
        assert world.receiver.facts(world.clock.monotonic()).error == ""
        if next(polls) > 10:
            was_told.set()
            world.receiver.stop()
        world.clock.advance(min(wait, 8))
        if wait > 8:
            raise AnswerLostError("Connection was closed before we received a valid response")
        return []

    world.sqs.receive = cut_after_eight_seconds
    world.receiver.start()
    assert was_told.wait(SOON)
    facts = world.receiver.facts(world.clock.monotonic())
    assert (facts.accepted, facts.error) == (True, "")
    (told,) = [each.message for each in caplog.records if "are cut off" in each.message]
    assert "the latest after 8 s" in told
    assert "set wait_time_seconds to less" in told


def test_an_idle_receiver_at_the_defaults_polls_three_times_a_minute(receiving):
    world = receiving(interval=0)
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
    world.receiver.start()
    assert hour_is_over.wait(SOON)
    assert len(receives(world)) == 60 * 3


def test_a_retry_does_not_wait_for_the_turn_of_its_queue(receiving):
    world = receiving(prefetch_count=2, interval=0)
    for name in "abcdefghijklmnopqrst":
        world.capacity.add_queue(another := f"another: {name}")
        world.capacity.wait(another)
    world.receiver.start()
    wait_until(
        lambda: world.capacity.waiting.get(timeout=SOON) == world.name, SOON, "it to wait for its turn"
    )
    send(world.queue, "a")
    world.receiver.expect("a", world.clock.monotonic())
    look(world)
    assert world.bodies() == ["a"]


def test_stop_before_start_leaves_the_others_their_share(receiving):
    world = receiving()
    world.receiver.stop()
    world.receiver.start()
    for name in "ab":
        world.capacity.add_queue(name)
    assert world.capacity.reserve("q").messages == 5


# Helpers.


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
    world.on_arrival = lambda: most.append(len(threads(world)))
    send(world.queue, *map(str, range(300)))
    world.receiver.start()
    assert len({body for _ in range(30) for body in world.bodies()}) == 300
    assert max(most) <= MAX_PARALLEL_POLLS


@pytest.mark.parametrize(
    ("messages", "seconds", "helped"),
    [
        (NEARLY_FULL_BATCH, 0.1, True),
        (NEARLY_FULL_BATCH - 1, 0.1, False),
        (9, ANSWERED_AT_ONCE_SECONDS, False),
        (10, 15, True),
    ],
    ids=["there is more", "that was all", "it was waited for", "waited for, and there is more"],
)
def test_where_an_answer_came_at_once_fewer_than_ten_have_a_helper(receiving, messages, seconds, helped):
    world = receiving(prefetch_count=1000)
    receive, again, polls = world.sqs.receive, threading.Event(), itertools.count()

    def receive_fewer(url, _messages, wait, options):
        if next(polls) == 0:
            world.clock.advance(seconds)
            return receive(url, messages, wait, options)
        if wait:  # that was the poller; a helper was started before
            again.set()
        world.let_go.wait(SOON)
        return []

    world.sqs.receive = receive_fewer
    send(world.queue, *map(str, range(10)))
    world.receiver.start()
    assert again.wait(SOON)
    assert len(threads(world)) == (2 if helped else 1)


def test_a_fifo_queue_is_asked_for_one_message_a_receive(receiving):
    world = receiving(prefetch_count=1000, suffix=".fifo")
    send(world.queue, *map(str, range(20)), group="g")
    world.receiver.start()
    assert world.bodies() == ["0"]
    wait_until(lambda: len(receives(world)) >= 2, SOON, "a look for another group")
    assert {call["max_messages"] for call in receives(world)} == {1}
    assert world.arrived.empty(), "the group waits for its first"


def test_of_few_groups_a_helper_is_tried_once_a_second(receiving):
    world = receiving(interval=0, suffix=".fifo")
    polls, helpers = itertools.count(1), []

    def receive(_url, _messages, wait, _options):
        if not wait:
            helpers.append(number[0])
            return []
        wait_for_threads(world, 1)  # the helper has found nothing
        number[0] = next(polls)
        if number[0] == 4:
            world.clock.advance(HELPER_PAUSE_SECONDS)
        if number[0] > 4:
            world.receiver.stop()
            return []
        return [{"MessageId": str(number), "ReceiptHandle": "h", "Body": "task"}]

    number = [0]
    world.sqs.receive = receive
    world.receiver.start()
    wait_for_threads(world, 0)
    assert helpers == [1, 4]


# Threads that hang or die.


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


def test_a_thread_that_hangs_is_replaced_again_and_again_until_there_is_an_answer(receiving, caplog):
    world = receiving(prefetch_count=1)  # all the capacity hangs with it
    hanging = Hanging(world, 3)
    world.receiver.start()
    assert hanging.hang.get(timeout=SOON) == 20
    look(world, 20)
    assert len(threads(world)) == 1, "an answer now would be in time"
    for seconds in (10, 30):
        look(world, seconds)
        assert hanging.hang.get(timeout=SOON) == 0, "the next thread asks for an answer at once"
    send(world.queue, "a")
    look(world, 30)
    assert world.bodies() == ["a"]
    send(world.queue, "b")
    world.let_go.set()  # a late answer still counts, capacity or not
    assert world.bodies() == ["b"]
    wait_for_threads(world, 1)
    assert world.capacity.held == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot receive from SQS: ReceiveMessage gets no answer; trying again (queue={world.name})",
        f"can receive from SQS again after 60 s (queue={world.name} failures=3)",
    ]


def hang_all(world):
    """Let one poll after the other hang, until no thread takes the latest one's place."""
    hanging = Hanging(world, MAX_THREADS)
    hanging.let_last_go = threading.Event()
    world.receiver.start()
    for _ in range(MAX_THREADS):
        hanging.hang.get(timeout=SOON)
        look(world, 30)
    assert len(threads(world)) == MAX_THREADS
    return hanging


def test_threads_that_hang_are_bounded_and_polling_goes_on_when_they_return(receiving):
    world = receiving()
    hanging = hang_all(world)
    send(world.queue, "a")
    hanging.let_last_go.set()
    assert world.bodies() == ["a"]
    world.let_go.set()
    wait_for_threads(world, 1)
    wait_for_sleep(world)
    send(world.queue, "b")
    world.receiver.expect("b", world.clock.monotonic())
    assert world.bodies() == ["b"]


def test_where_the_latest_of_them_does_not_return_another_takes_its_place(receiving, caplog):
    world = receiving()
    hanging = hang_all(world)
    world.let_go.set()
    wait_for_threads(world, 1)
    send(world.queue, "a")
    world.receiver.expect("a", world.clock.monotonic())
    look(world, 1)
    assert world.bodies() == ["a"]
    hanging.let_last_go.set()
    assert caplog.messages[-1] == f"a thread that polls '{world.name}' hangs: another takes its place"


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
    look(world)
    assert len(threads(world)) == 1
    if how == "died":
        world.let_go.set()
        wait_for_threads(world, 0)
        look(world)
        wait_for_threads(world, 1)
    else:
        look(world, HUNG_AFTER_SECONDS + 1)
        assert len(threads(world)) == 2
    assert world.capacity.held == 1
    assert caplog.messages == [f"a thread that polls '{world.name}' {how}: another takes its place"]


def test_where_no_thread_can_be_started_one_is_when_the_supervisor_looks(receiving, monkeypatch, caplog):
    world = receiving()

    def no_more(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_more)
        world.receiver.start()
    assert caplog.messages == [f"a thread that polls '{world.name}' could not be started"]
    send(world.queue, "a")
    look(world)
    assert world.bodies() == ["a"]


def facts(world, later=0.0):
    facts = world.receiver.facts(world.clock.monotonic() + later)
    return facts.late, facts.accepted


def test_a_sleeping_receiver_is_late_when_it_does_not_wake(receiving):
    world = receiving()
    world.receiver.start()
    wait_for_sleep(world)
    wait_until(lambda: facts(world) == (0, True), SOON, "it to sleep")
    assert facts(world, LONG + 60)[0] == pytest.approx(60, abs=1)


def test_a_receiver_that_hangs_with_its_messages_is_late_and_one_without_capacity_is_not(receiving):
    world = receiving(prefetch_count=1, interval=0)
    world.on_arrival = lambda: world.let_go.wait(SOON)
    send(world.queue, "a")
    world.receiver.start()
    assert world.bodies() == ["a"]
    assert facts(world, 300)[0] > 250
    world.let_go.set()
    wait_until(lambda: facts(world, 300)[0] == 0, SOON, "it to wait for capacity")


def test_a_first_poll_counts_as_accepted_while_sqs_lets_it_wait(receiving):
    world = receiving()
    asked = threading.Event()

    def long_poll(*_):
        asked.set()
        world.let_go.wait(SOON)
        return []

    world.sqs.receive = long_poll
    world.receiver.start()
    assert asked.wait(SOON)
    assert facts(world) == (0, False)
    assert facts(world, REFUSED_WITHIN_SECONDS) == (0, True)
    look(world, 60)
    assert world.receiver.facts(0.0).accepted is False
    assert world.receiver.facts(0.0).error == "ReceiveMessage gets no answer"


def test_a_receiver_without_a_thread_is_late(receiving, monkeypatch):
    world = receiving()
    monkeypatch.setattr(receiver_module, "start_thread", lambda *_: None)
    world.receiver.start()
    look(world, 60)  # again it gets none
    assert facts(world)[0] == 60
