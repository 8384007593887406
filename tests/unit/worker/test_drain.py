"""A drain on a clock that the test turns: what it does, in which order, and when."""

import math
import signal
import threading
from types import SimpleNamespace

import pytest
from celery.worker import state
from support.clock import FakeClock

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.giving_back import POLLS_IN_FLIGHT_SECONDS
from celery_sqs_visibility.core.settlements import RELEASE
from celery_sqs_visibility.events import DeliveryFacts, Received, Released, emit
from celery_sqs_visibility.policy.backoff import MAX_REPLY_GRACE_SECONDS
from celery_sqs_visibility.worker import drain as module
from celery_sqs_visibility.worker.drain import (
    BEFORE_SIGKILL_SECONDS,
    EARLY_BEFORE_SIGKILL_SECONDS,
    ECS_STOP_SECONDS,
    ECS_VARIABLE,
    END_SECONDS,
    GRACE_VARIABLE,
    MARGIN_SECONDS,
    RECHECK_SECONDS,
    UNWIND_SECONDS,
    Drain,
    LastRuns,
    grace_period,
    may_interrupt,
    shutdown_times,
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
            ("sleep", self.sleep),
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


@pytest.mark.parametrize(
    ("polls_end", "runs_end", "timeout", "handed"),
    [(3, -math.inf, None, 3), (0, 7, None, 7), (math.inf, math.inf, 4, 4)],
    ids=["no runs", "runs that end in time", "runs that do not"],
)
def test_messages_are_handed_back_when_polls_and_runs_have_ended_or_time_is_over(
    world, polls_end, runs_end, timeout, handed
):
    world.consumer.polls_end = world.began + polls_end
    world.consumer.runs_end = world.began + runs_end
    world.drain.begin(timeout)
    assert world.run() is None
    assert world.instants("q hands back") == [handed]


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


@pytest.mark.parametrize(
    ("timeout", "order"),
    [
        (TIMEOUT, ["run is ended", "keys go", "q hands back"]),
        (math.inf, ["keys go", "q hands back"]),
    ],
    ids=["time is over", "without an end"],
)
def test_processes_of_exclusive_tasks_are_killed_before_another_worker_can_have_their_keys(
    world, timeout, order
):
    world.context.release_keys = lambda: world.note("keys go")
    world.consumer.runs_end = 1 if math.isinf(timeout) else math.inf
    world.active = [run, threaded] = [Run(world), Run(world, ends=False)]
    run.is_killed_before_its_key_is_free = True
    threaded.is_killed_before_its_key_is_free = False
    world.drain.begin(timeout)
    world.run()
    notes = [what for _, what in world.notes]
    assert [what for what in notes[: notes.index("q hands back") + 1] if what in order] == order


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


@pytest.mark.parametrize(
    ("timeout", "over"), [(28, 30 - BEFORE_SIGKILL_SECONDS), (29.8, 29.8 + RECHECK_SECONDS)]
)
def test_a_process_is_over_before_sigkill_but_has_a_moment_however_near_that_is(graceful, timeout, over):
    graceful.active.append(Run(graceful))
    graceful.drain.begin(timeout)
    assert graceful.run() == 0
    assert graceful.clock.monotonic() == pytest.approx(graceful.began + over)


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


def test_without_a_known_grace_a_run_that_was_acknowledged_early_is_waited_for_until_the_worker_stops(world):
    world.active.append(Run(world, early=True))
    world.at(900, world.drain.cancel)
    world.drain.begin(5)
    assert world.run() is None
    assert 900 <= world.clock.monotonic() - world.began < 901
    assert world.instants("run is ended") == []


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


class EndingRun:
    """A request of ours whose message is held until its end, or was deleted when it began."""

    name = "task"

    def __init__(self, run_id, *, early=False, **attributes):
        self.id = run_id
        self.ends = 0
        self.delivery = SimpleNamespace(acknowledged_early=early)
        vars(self).update(attributes)

    def end_in_shutdown(self):
        self.ends += 1


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def interrupts(monkeypatch, clock):
    """The instants at which the main thread was interrupted."""
    instants = []
    monkeypatch.setattr(module, "_interrupt_main_thread", lambda: instants.append(clock.monotonic()))
    return instants


def last(*runs):
    return LastRuns(lambda: list(runs), lambda end: end())


def test_runs_are_told_apart_by_when_their_messages_are_deleted():
    late, early, of_another_broker = EndingRun(1), EndingRun(2, early=True), EndingRun(3)
    of_another_broker.delivery = None
    runs = last(late, early, of_another_broker)
    assert runs.acknowledged_late() == [late]
    assert runs.acknowledged_early() == [early, of_another_broker]


def test_each_late_run_is_ended_once_and_one_that_began_since_as_well():
    runs = [EndingRun(1), EndingRun(2, early=True)]
    of_the_worker = LastRuns(lambda: list(runs), lambda end: end())
    assert not of_the_worker.any_ended
    of_the_worker.end_acknowledged_late()
    runs.append(EndingRun(3))
    of_the_worker.end_acknowledged_late()
    assert [each.ends for each in runs] == [1, 0, 1]
    assert of_the_worker.any_ended


def test_without_late_runs_none_was_ended():
    runs = last(EndingRun(1, early=True))
    runs.end_acknowledged_late()
    assert not runs.any_ended
    assert not runs.interrupts


def test_runs_that_were_acknowledged_early_are_told_as_lost_and_ended_once(caplog):
    run = EndingRun("id", early=True)
    runs = last(run)
    for _ in range(2):
        runs.end_acknowledged_early()
    assert (run.ends, runs.acknowledged_early(), runs.any_ended) == (1, [], True)
    assert caplog.text.count("shutdown: lost: it was acknowledged when it began") == 1
    assert "task=task task_id=id" in caplog.text
    assert [record.sqs for record in caplog.records] == [{"task": "task", "task_id": "id"}]


def test_a_run_at_the_end_of_a_chord_is_ended_a_moment_later():
    run = EndingRun(1, publishes_chord=True)
    runs = last(run)
    runs.end_acknowledged_late()
    assert (run.ends, runs.any_ended) == (0, True)
    run.publishes_chord = False
    runs.end_acknowledged_late()
    assert run.ends == 1


def test_a_request_of_another_class_is_counted_and_cannot_be_ended():
    run = SimpleNamespace(delivery=EndingRun(1).delivery)
    runs = last(run)
    runs.end_acknowledged_late()
    assert runs.any_ended


def test_a_run_on_the_main_thread_is_interrupted_at_once_and_again_when_it_had_time_to_clean_up(
    clock, interrupts
):
    run = EndingRun(1, is_on_main_thread=True)
    runs = last(run)
    began = clock.monotonic()
    for _ in range(5):
        runs.end_acknowledged_late()
        clock.advance(UNWIND_SECONDS / 2)
    assert interrupts == [began, began + UNWIND_SECONDS, began + 2 * UNWIND_SECONDS]
    assert (run.ends, runs.interrupts) == (0, True)


def test_the_main_thread_is_not_interrupted_for_a_run_elsewhere(clock, interrupts):
    run = EndingRun(1, is_on_main_thread=False)
    last(run).end_acknowledged_late()
    assert (run.ends, interrupts) == (1, [])


@pytest.mark.parametrize(("handler", "sent"), [(lambda *_: None, 1), (signal.SIG_DFL, 0)])
def test_the_main_thread_is_sent_a_signal_if_that_does_not_kill_the_process(monkeypatch, handler, sent):
    signals = []
    monkeypatch.setattr(module.signal, "getsignal", {signal.SIGQUIT: handler}.get)
    monkeypatch.setattr(module.signal, "pthread_kill", lambda *call: signals.append(call))
    module._interrupt_main_thread()
    main = module.threading.main_thread().ident
    assert signals == [(main, signal.SIGQUIT)] * sent


def test_all_runs_of_the_process_are_looked_at():
    run = EndingRun(1)
    state.active_requests.add(run)
    assert LastRuns().acknowledged_late() == [run]


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_run_is_ended_in_a_thread_of_its_own_or_here_if_there_is_none(monkeypatch, has_threads):
    started = []

    def start(act, name):
        started.append(name)
        return act if has_threads else None

    monkeypatch.setattr(module, "start_thread", start)
    run = EndingRun(1)
    LastRuns(lambda: [run]).end_acknowledged_late()
    assert started == ["sqs-end-run"]
    assert run.ends == (0 if has_threads else 1)


def frame_within(code):
    """A frame that was called by one with that code."""
    return SimpleNamespace(f_code=None, f_back=SimpleNamespace(f_code=code, f_back=None))


def test_only_a_run_may_be_interrupted_and_not_at_its_end_as_a_chords_member(monkeypatch):
    assert may_interrupt(frame_within(module.RUN_CODE))
    assert not may_interrupt(frame_within("another"))
    assert not may_interrupt(None)
    monkeypatch.setattr(module, "is_at_end", lambda thread: thread == module.threading.get_ident())
    assert not may_interrupt(frame_within(module.RUN_CODE))


@pytest.mark.parametrize(
    ("variables", "seconds", "source"),
    [
        ({}, math.inf, ""),
        ({GRACE_VARIABLE: "45"}, 45.0, f"{GRACE_VARIABLE} says that SIGKILL comes 45 s after SIGTERM"),
        ({ECS_VARIABLE: "http://x"}, ECS_STOP_SECONDS, "Amazon ECS kills 30 s after SIGTERM"),
        ({GRACE_VARIABLE: "120", ECS_VARIABLE: "http://x"}, 120.0, GRACE_VARIABLE),
        ({GRACE_VARIABLE: "", ECS_VARIABLE: "http://x"}, ECS_STOP_SECONDS, "Amazon ECS"),
        ({GRACE_VARIABLE: "a minute"}, math.inf, ""),
    ],
)
def test_the_platform_says_when_sigkill_comes(monkeypatch, caplog, variables, seconds, source):
    for name in (GRACE_VARIABLE, ECS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found, reason = grace_period()
    assert found == seconds
    assert reason.startswith(source)
    assert ("to be a number of seconds, got 'a minute'" in caplog.text) == ("a minute" in variables.values())


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [({}, 25), ({GRACE_VARIABLE: "120"}, 115), ({GRACE_VARIABLE: "3"}, 0), ({ECS_VARIABLE: "http://x"}, 25)],
)
def test_runs_have_all_but_five_seconds_of_the_grace_period_unless_the_option_says_otherwise(
    monkeypatch, caplog, variables, seconds
):
    for name in (GRACE_VARIABLE, ECS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    timeout, _ = shutdown_times(None)
    assert timeout == seconds
    assert not caplog.messages
    assert shutdown_times(0.5)[0] == 0.5


@pytest.mark.parametrize(
    ("timeout", "grace", "warning"),
    [
        (30 - MARGIN_SECONDS, 30, ""),
        (30 - MARGIN_SECONDS + 1, 30, "set at most 28"),
        (1, 1, "set at most 0"),
    ],
)
def test_a_shutdown_timeout_that_sigkill_cuts_off_is_warned_of(monkeypatch, caplog, timeout, grace, warning):
    monkeypatch.setenv(GRACE_VARIABLE, str(grace))
    assert shutdown_times(timeout) == (timeout, grace)
    assert (warning in caplog.text, len(caplog.records)) == (True, bool(warning))
