"""A drain on a clock that the test turns: what it does, in which order, and when."""

from __future__ import annotations

import math
import signal
import threading
from types import SimpleNamespace

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.settlements import RELEASE
from celery_sqs_visibility.delivery.shutdown import POLLS_IN_FLIGHT_SECONDS
from celery_sqs_visibility.events import DeliveryFacts, Received, Released, emit
from celery_sqs_visibility.policy.backoff import MAX_REPLY_GRACE_SECONDS
from celery_sqs_visibility.worker import drain as module
from celery_sqs_visibility.worker.drain import (
    BEFORE_SIGKILL_SECONDS,
    EARLY_BEFORE_SIGKILL_SECONDS,
    END_SECONDS,
    GRACE_VARIABLE,
    RECHECK_SECONDS,
    Drain,
)

LONGEST_POLL = 20
TIMEOUT = 25.0


class ProcessEnded(BaseException):
    """The process ends with that status."""

    def __init__(self, status):
        self.status = status


class QueueConsumer:
    """A queue consumer whose runs and polls end at instants that the test says."""

    def __init__(self, world, name="q"):
        self._world = world
        self._name = name
        self.runs_end = self.polls_end = -math.inf
        self.unstarted, self.late_arrivals, self.orphans = [], [], []
        self.ends = []

    def held(self):
        runs = SimpleNamespace(state=State.RUNNING)
        return [runs] if self.runs_end > self._world.clock.monotonic() else []

    def _advance_to(self, instant):
        self._world.clock.advance(max(0.0, instant - self._world.clock.monotonic()))

    def stop_polling(self):
        self._world.note(f"{self._name} stops")

    def give_back_unstarted(self):
        self._world.note(f"{self._name} gives back")
        given, self.unstarted = self.unstarted, self.late_arrivals
        self.late_arrivals = []
        return self._world.released(given)

    def wait_for_polls(self, until):
        self._world.turn()
        self._advance_to(min(until, self.polls_end))
        return self.polls_end <= self._world.clock.monotonic()

    def wait_until_empty(self, seconds):
        self._world.turn()
        self._advance_to(min(self._world.clock.monotonic() + seconds, self.runs_end))
        return not self.held()

    def end_by(self, until, polls_until):
        self.ends.append((until, polls_until))

    def hand_back(self):
        self._world.note(f"{self._name} hands back")
        return self._world.released(self.orphans)


class World:
    def __init__(self, monkeypatch, grace=""):
        monkeypatch.setenv(GRACE_VARIABLE, grace)
        self.clock = FakeClock()
        self.notes, self.threads, self.killed, self.later = [], [], [], []
        self.confirms = True  # whether SQS confirms what is given back
        for name, value in (
            ("SYSTEM_CLOCK", self.clock),
            ("_sleep", self.sleep),
            ("start_thread", self.start_thread),
            ("active_children", lambda: [SimpleNamespace(pid=7), SimpleNamespace(pid=None)]),
        ):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(module.os, "_exit", self.exit)
        monkeypatch.setattr(module.os, "kill", lambda *call: self.killed.append(call))
        self.consumer = QueueConsumer(self)
        self.context = SimpleNamespace(
            options=SimpleNamespace(
                shutdown_timeout=TIMEOUT, longest_poll=LONGEST_POLL, supports_fanout=True
            ),
            receiving=SimpleNamespace(
                worker_queue_consumers=[self.consumer], queue_consumers=[self.consumer]
            ),
            release_keys=None,
            end_broadcasts=lambda: self.note("broadcasts end"),
            end_control=lambda: self.note("control ends"),
            end_control_first=lambda: self.note("control ends first"),
        )
        self.pidlock = SimpleNamespace(release=lambda: self.note("pid file goes"))
        connection = SimpleNamespace(transport=SimpleNamespace(context=self.context))
        self.drain = Drain(
            SimpleNamespace(
                connection=connection, controller=SimpleNamespace(pidlock=self.pidlock, pool=None)
            )
        )
        self.active = []
        self.drain._runs = module.LastRuns(lambda: list(self.active), lambda end: end())
        self.drain.start()
        self.threads.clear()
        self.began = self.clock.monotonic()

    def note(self, what):
        self.notes.append((round(self.clock.monotonic() - self.began, 3), what))

    def turn(self):
        """Time has come for what happens meanwhile."""
        for at, act in list(self.later):
            if self.clock.monotonic() - self.began >= at:
                self.later.remove((at, act))
                act()

    def at(self, seconds, act):
        self.later.append((seconds, act))

    def sleep(self, seconds):
        self.clock.advance(seconds)
        self.turn()

    def start_thread(self, act, name):
        self.threads.append(name)
        if name == "sqs-end-queues":
            act()
        return SimpleNamespace(join=lambda seconds: self.note(f"{name} is waited for, {seconds} s"))

    def exit(self, status):
        raise ProcessEnded(status)

    def released(self, deliveries):
        for each in deliveries if self.confirms else ():
            emit(Released(each.facts))
        return deliveries

    def run(self):
        """The work of its thread; the status with which that ends the process, or `None`."""
        self.drain._orders.put(False)
        try:
            self.drain._run()
        except ProcessEnded as ended:
            return ended.status

    def instants(self, what):
        return [at for at, each in self.notes if each == what]


class Run:
    """A request whose run ends when it is told so, or never."""

    name, id = "task", "id"

    def __init__(self, world, *, early=False, ends=True):
        self._world, self._ends = world, ends
        self.delivery = SimpleNamespace(acknowledged_early=early)

    def end_in_shutdown(self):
        self._world.note("run is ended")
        if self._ends:
            self._world.active.remove(self)


def delivery(message_id):
    facts = DeliveryFacts("q", message_id, 1, 0.0, "task", "id")
    return SimpleNamespace(facts=facts, queue=SimpleNamespace(name="q"))


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


@pytest.fixture
def graceful(monkeypatch):
    """SIGKILL comes after 30 s."""
    return World(monkeypatch, grace="30")


def test_messages_are_given_back_before_and_after_the_polls_and_those_of_runs_when_time_is_over(world):
    world.consumer.polls_end = world.began + 3
    world.consumer.runs_end = math.inf
    world.drain.begin()
    world.run()
    assert world.notes == [
        (0, "q stops"),
        (0, "q gives back"),
        (3, "q gives back"),
        (TIMEOUT, "q hands back"),
    ]


def test_a_worker_without_runs_hands_back_when_its_polls_have_ended(world):
    world.consumer.polls_end = world.began + 3
    world.drain.begin()
    assert world.run() is None
    assert world.instants("q hands back") == [3]


def test_a_worker_whose_runs_end_is_not_held_up_until_its_time_is_over(world):
    world.consumer.runs_end = world.began + 7
    world.drain.begin()
    assert world.run() is None
    assert world.instants("q hands back") == [7]


def test_runs_have_their_time_while_polls_are_waited_for_and_no_longer(world):
    world.consumer.runs_end = world.consumer.polls_end = math.inf
    world.drain.begin(4)
    world.run()
    assert world.instants("q hands back") == [4]


@pytest.mark.parametrize(("first", "second", "handed"), [(20, 2, 7), (7, 20, 7)])
def test_a_later_signal_shortens_the_time_of_runs_and_none_prolongs_it(world, first, second, handed):
    world.consumer.runs_end = math.inf
    world.at(5, lambda: world.drain.begin(second))
    world.drain.begin(first)
    world.run()
    assert world.instants("q hands back") == [handed]


def test_the_keys_of_orphans_are_released_before_another_worker_can_have_their_messages(world):
    world.context.release_keys = lambda: world.note("keys go")
    world.consumer.runs_end = math.inf
    world.drain.begin()
    world.run()
    assert world.notes[-2:] == [(TIMEOUT, "keys go"), (TIMEOUT, "q hands back")]


def test_what_sqs_has_confirmed_is_counted_and_what_not_is_told(world, caplog):
    caplog.set_level("INFO")
    world.consumer.unstarted = [delivery("a"), delivery("b")]
    world.consumer.late_arrivals = [delivery("c")]
    world.drain.begin()
    world.run()
    assert "shutdown: no more polls; running tasks have 25 s" in caplog.text
    assert "shutdown: 2 messages given back that had not begun" in caplog.text
    assert "could not be given back" not in caplog.text


def test_a_message_that_cannot_be_given_back_is_named(world, caplog):
    world.confirms = False
    world.consumer.unstarted = [delivery("a")]
    world.consumer.orphans = [delivery("b")]
    world.drain.begin()
    world.run()
    assert "shutdown: 1 message could not be given back: hidden until the visibility timeout" in caplog.text
    assert "message_ids=a" in caplog.text
    assert "orphaned, could not be handed back: comes back after its visibility timeout" in caplog.text


def test_an_orphan_that_was_handed_back_is_named(world, caplog):
    world.consumer.orphans = [delivery("b")]
    world.drain.begin()
    world.run()
    assert "shutdown: orphaned, handed back (task=task task_id=id message_id=b" in caplog.text


def test_a_message_that_comes_here_again_is_not_given_back(world, caplog):
    world.confirms = False
    again = delivery("a")

    def give_back():
        emit(Released(again.facts))
        emit(Received(again.facts))
        return [again]

    world.consumer.give_back_unstarted = give_back
    world.drain.begin()
    world.run()
    assert "could not be given back" in caplog.text


def test_without_an_end_nobody_is_told_a_time_and_no_run_is_ended(world, caplog):
    caplog.set_level("INFO")
    world.active.append(Run(world))
    world.drain.begin(math.inf)
    assert world.run() is None
    assert "running tasks have as long as they take" in caplog.text
    assert world.instants("run is ended") == []


def test_an_error_leaves_the_end_of_runs_as_it_was(world, caplog):
    world.consumer.stop_polling = lambda: 1 / 0
    world.active.append(Run(world))
    world.drain.begin()
    world.run()
    assert "error while draining; held messages come back when their visibility ends" in caplog.text
    assert world.instants("run is ended") == [TIMEOUT]


def test_each_worker_is_drained_once(world):
    world.drain.begin()
    world.drain.begin()
    world.run()
    assert len(world.instants("q hands back")) == 1


def test_the_consumers_are_told_until_when_they_have_time_for_runs_and_for_polls(world):
    world.drain.begin()
    world.run()
    assert world.consumer.ends[0] == (
        world.began + TIMEOUT,
        world.began + min(TIMEOUT, LONGEST_POLL + MAX_REPLY_GRACE_SECONDS),
    )


def test_polls_that_were_shortened_are_waited_for_a_moment(world):
    world.consumer.polls_end = math.inf
    world.drain.shorten_polls()
    world.drain.begin()
    world.run()
    assert world.instants("q gives back") == [0, POLLS_IN_FLIGHT_SECONDS]
    assert world.consumer.ends[-1][1] == world.began + POLLS_IN_FLIGHT_SECONDS


def test_a_second_signal_ends_the_wait_for_polls_at_the_next_look(world):
    world.consumer.polls_end = math.inf
    world.at(1, world.drain.hurry)
    world.drain.begin()
    world.run()
    (_, second) = world.instants("q gives back")
    assert 1 <= second <= 1 + 2 * RECHECK_SECONDS


def test_a_third_signal_does_not_prolong_what_the_second_has_shortened(world):
    world.drain.begin()
    world.drain.hurry()
    hurried = world.clock.monotonic()
    world.clock.advance(1)
    world.drain.hurry()
    assert world.drain._polls_until() == hurried


def test_a_cold_end_leaves_polls_their_moment_and_runs_none(world):
    world.drain.begin(0, cold=True)
    world.run()
    until = world.began + POLLS_IN_FLIGHT_SECONDS
    assert world.consumer.ends[0] == (until, until)


def test_a_cold_end_gives_runs_what_a_soft_timeout_leaves_them(world):
    world.drain.begin(12, cold=True)
    assert world.drain._ends_at == world.began + 12


def test_a_late_run_is_ended_when_time_is_over_and_the_process_within_its_bound(world):
    world.active.append(Run(world))
    world.drain.begin()
    assert world.run() == 0
    assert world.instants("run is ended") == [TIMEOUT]
    assert world.clock.monotonic() == world.began + TIMEOUT + END_SECONDS


def test_an_embedded_worker_does_not_end_its_process(world):
    world.drain._owns_process = False
    world.active.append(Run(world))
    world.drain.begin()
    assert world.run() is None
    assert world.instants("run is ended") == [TIMEOUT]


def test_a_run_that_ends_in_time_is_not_ended(world):
    run = Run(world)
    world.active.append(run)
    world.at(10, lambda: world.active.remove(run))
    world.drain.begin()
    assert world.run() is None
    assert world.instants("run is ended") == []
    assert world.clock.monotonic() < world.began + TIMEOUT


def test_a_process_is_over_before_sigkill(graceful):
    graceful.active.append(Run(graceful))
    graceful.drain.begin(28)
    assert graceful.run() == 0
    assert graceful.clock.monotonic() == graceful.began + 30 - BEFORE_SIGKILL_SECONDS


def test_a_process_whose_sigkill_is_near_has_a_moment_all_the_same(graceful):
    graceful.active.append(Run(graceful))
    graceful.drain.begin(29.8)
    assert graceful.run() == 0
    assert graceful.clock.monotonic() == pytest.approx(graceful.began + 29.8 + RECHECK_SECONDS)


def test_a_run_that_began_meanwhile_is_ended_before_the_process(world):
    world.active.append(Run(world))
    world.at(TIMEOUT + 1, lambda: world.active.append(Run(world)))
    world.drain.begin()
    world.run()
    first, second = world.instants("run is ended")
    assert (first, second) == (TIMEOUT, pytest.approx(TIMEOUT + 1, abs=RECHECK_SECONDS))


@pytest.mark.parametrize(("cold", "status"), [(False, 0), (True, 1)])
def test_a_process_that_is_ended_takes_its_children_its_pid_file_and_its_queues_with_it(world, cold, status):
    world.active.append(Run(world))
    world.drain.begin(1, cold=cold)
    assert world.run() == status
    assert world.killed == [(7, signal.SIGKILL)]
    assert [what for _, what in world.notes[-4:]] == [
        "pid file goes",
        "control ends",
        "broadcasts end",
        "sqs-end-queues is waited for, 1.5 s",
    ]


def test_a_process_without_pid_file_broadcasts_and_threads_ends_as_well(world, monkeypatch):
    world.drain._controller.pidlock = None
    world.context.options.supports_fanout = False
    monkeypatch.setattr(module, "start_thread", lambda *_: None)
    world.active.append(Run(world))
    world.drain.begin(1)
    assert world.run() == 0
    assert world.notes[-1][1] == "run is ended"


def test_a_child_that_is_gone_already_does_not_keep_the_process(world, monkeypatch):
    def kill(_pid, _signal):
        raise ProcessLookupError

    monkeypatch.setattr(module.os, "kill", kill)
    world.active.append(Run(world))
    world.drain.begin(1)
    assert world.run() == 0


def test_a_run_that_was_acknowledged_early_is_lost_a_moment_before_sigkill(graceful, caplog):
    graceful.active.append(Run(graceful, early=True))
    graceful.drain.begin(5)
    graceful.run()
    assert graceful.instants("run is ended") == [30 - EARLY_BEFORE_SIGKILL_SECONDS]
    assert "shutdown: lost" in caplog.text


def test_a_run_that_was_acknowledged_early_and_ends_in_time_is_not_lost(graceful, caplog):
    caplog.set_level("INFO")
    run = Run(graceful, early=True)
    graceful.active.append(run)
    graceful.at(9, lambda: graceful.active.remove(run))
    graceful.drain.begin(5)
    assert graceful.run() is None
    assert graceful.clock.monotonic() == pytest.approx(graceful.began + 9, abs=RECHECK_SECONDS)
    assert "waiting for runs that were acknowledged when they began: 1" in caplog.text
    assert "lost" not in caplog.text


@pytest.mark.parametrize("hurry", [True, False])
def test_a_second_signal_or_a_cold_end_loses_runs_that_were_acknowledged_early_with_the_others(
    graceful, hurry
):
    graceful.active.append(Run(graceful, early=True))
    graceful.drain.begin(5, cold=not hurry)
    if hurry:
        graceful.drain.hurry()
    graceful.run()
    assert graceful.instants("run is ended") == [5]


def test_a_worker_that_has_stopped_waits_for_no_run_that_was_acknowledged_early(graceful):
    graceful.active.append(Run(graceful, early=True))
    graceful.at(9, graceful.drain.cancel)
    graceful.drain.begin(5)
    assert graceful.run() is None
    assert graceful.clock.monotonic() < graceful.began + 10
    assert graceful.instants("run is ended") == []


def test_consumers_inside_tasks_end_with_the_runs_that_are_ended(world):
    inside = QueueConsumer(world, "inside")
    world.context.receiving.queue_consumers.append(inside)
    world.active.append(Run(world))
    world.drain.begin()
    world.run()
    assert world.instants("inside hands back") == world.instants("inside stops") == [TIMEOUT]
    assert inside.ends == [(world.began + TIMEOUT, world.began + TIMEOUT)]
    assert len(world.instants("q hands back")) == 1


def test_a_finish_before_the_drain_waits_for_nothing(world):
    world.drain.finish()
    assert world.notes == []


def test_a_finish_waits_for_the_polls_of_all_consumers_and_for_the_drain(world):
    inside = QueueConsumer(world, "inside")
    inside.polls_end = world.began + 4
    world.context.receiving.queue_consumers.append(inside)
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            world.drain._drained.set()

    world.drain.begin()
    world.drain._drained = SimpleNamespace(is_set=lambda: len(waits) == 3, wait=wait, set=lambda: None)
    world.drain.finish()
    assert world.notes == [(0, "q stops"), (0, "inside stops")]
    assert world.clock.monotonic() == world.began + 4
    assert waits == [RECHECK_SECONDS] * 3


def test_a_finish_leaves_messages_that_are_still_held_to_the_channel(world):
    world.consumer.runs_end = math.inf
    world.drain.begin()
    world.drain.finish()
    assert not world.drain._drained.is_set()


def test_a_finish_gives_back_what_no_process_has_read(world, caplog):
    """As with `worker_max_tasks_per_child`: a process has had its last task, and the next one in its pipe."""
    settled = []

    def held(name, state):
        settle = lambda settlement: settled.append((name, settlement)) or True  # noqa: E731
        return SimpleNamespace(settle=settle, state=state)

    world.consumer.runs_end = math.inf
    states = {"unread": State.DISPATCHED, "runs": State.RUNNING, "Celery's": State.HELD}
    world.consumer.held = lambda: [held(*each) for each in states.items()]
    world.drain.begin()
    caplog.set_level("INFO")
    world.drain.finish()
    assert settled == [("unread", RELEASE)]
    assert "1 message given back that no process had begun" in caplog.text


def test_the_queues_of_a_worker_that_has_ended_go_and_its_control_queue_as_the_process_ends(world):
    world.drain.end_broadcasts()
    assert world.notes == [(0, "broadcasts end"), (0, "control ends first")]


def test_a_drain_whose_thread_cannot_be_started_is_an_error(world, monkeypatch):
    monkeypatch.setattr(module, "start_thread", lambda *_: None)
    with pytest.raises(RuntimeError, match="cannot start the thread that shuts down"):
        world.drain.start()


def test_a_drain_knows_whether_it_runs_in_the_main_thread_and_may_end_the_process(world):
    assert world.drain._owns_process
    thread = threading.Thread(target=world.drain.start)
    thread.start()
    thread.join()
    assert not world.drain._owns_process
    assert world.threads == ["sqs-drain"]
