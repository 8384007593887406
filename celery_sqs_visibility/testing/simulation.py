"""Simulation of at-least-once delivery: a task under seeded schedules of faults, in memory.

The package's own code receives, runs, settles, retries, extends and keeps the keys of exclusive tasks; the
schedule decides what happens around it. Everything is in one thread: if two runs overlap, the second runs
completely inside a point of the first.

A death is a `SystemExit` raised at a point. What the task then does in `except` and `finally` is suppressed
at the next point, because a dead process does nothing; only code there that is not an effect is executed.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from celery.exceptions import WorkerTerminate

from celery_sqs_visibility import events
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import Delete, Settlement
from celery_sqs_visibility.events import DeliveryEvent, subscribe
from celery_sqs_visibility.testing.blocking import ended_if_it_waits
from celery_sqs_visibility.testing.clock import replaced
from celery_sqs_visibility.testing.schedule import (
    AT_THE_END,
    BETWEEN_RUNS,
    DELAYS,
    ENDS_OF_A_WORKER,
    IN_A_RUN,
    OVERLAPS,
    WHEN_EMPTY,
    Fault,
    Schedule,
)
from celery_sqs_visibility.testing.worker import Worker
from celery_sqs_visibility.testing.world import World

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

#: The variable with the one seed to replay, in all simulations of the process.
SEED_VARIABLE: Final = "SQS_SIMULATION_SEED"

#: Where files are kept in memory, if the machine has it: hundreds of databases are created and removed.
MEMORY: Final = "/dev/shm"  # noqa: S108 - the directories in it are private

#: Longest key in a line of the schedule.
SHOWN_CHARACTERS: Final = 80


class SimulationFailedError(AssertionError):
    """A simulation in which a check failed. Its text has the seed and the schedule.

    Attributes:
        seed: of the schedule; `None` if it failed without a fault.
    """

    def __init__(self, text: str, seed: int | None) -> None:
        super().__init__(text, seed)
        self.seed = seed

    def __str__(self) -> str:
        return str(self.args[0])


class WorkerDiedError(WorkerTerminate):
    """The process of a simulated worker has died: none of its runs continues."""

    def __init__(self, worker: SimulatedWorker) -> None:
        super().__init__(0)
        self.worker = worker


class SimulatedWorker(Worker):
    """A worker whose settlements are points of the simulation.

    Attributes:
        running: the delivery whose task it runs.
        left: the points that its run may still pass in a shutdown; `None` if there is no shutdown.
    """

    before_settlement: Callable[[SimulatedWorker, Delivery, Settlement], None]
    running: Delivery | None = None
    left: int | None = None

    def start(self, delivery: Delivery) -> bool:
        self.running = delivery
        return super().start(delivery)

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        if not self.dead and delivery.held:
            self.before_settlement(self, delivery, settlement)
        settled = super().settle(delivery, settlement, receipt)
        if delivery.acknowledged_early:
            self.send_all()  # its run begins only now
        return settled


class Simulation(World):
    """One simulation: a world with a schedule of faults.

    Attributes:
        seed: of the schedule; `None` in the run without faults, which counts the points.
        steps: what has happened so far, a line each.
        effects: the keys of all effects, in order.
    """

    worker_class = SimulatedWorker

    def __init__(self, seed: int | None, points: int = 0, faults: Collection[Fault] = tuple(Fault)) -> None:
        super().__init__(seed or 0)
        self.seed = seed
        self.steps: list[str] = []
        self.effects: list[Any] = []
        self.faults = faults
        self._schedule = Schedule(seed, points, faults)
        self._busy: list[SimulatedWorker] = []  # each holds a message, the last one in the innermost run
        self._directory: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.callback(subscribe(self._tell))
        return self

    @property
    def directory(self) -> Path:
        """An empty directory for this simulation, removed at its end."""
        if self._directory is None:
            memory = MEMORY if os.access(MEMORY, os.W_OK) else None
            self._directory = TemporaryDirectory(prefix="simulation-", dir=memory)
            self._stack.callback(self._directory.cleanup)
        return Path(self._directory.name)

    @property
    def points(self) -> int:
        """Number of points passed so far."""
        return self._schedule.passed

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Give an attribute of an object, a class or a module another value until the simulation's end.

        Raises:
            AttributeError: there is no such attribute.
            TypeError: the object takes no attributes, as those of C code.
        """
        getattr(owner, name)
        self._stack.enter_context(replaced(owner, name, value))

    def wrap(self, owner: Any, name: str, key: Callable[..., Any] | None = None) -> None:
        """Make each call of a function or method, an attribute of `owner`, an effect until the end.

        Args:
            owner: an object, a class or a module.
            name: of the attribute.
            key: makes the effect's key of the call's arguments; `None`: it is the name with the arguments.
        """
        called = getattr(owner, name)

        @wraps(called)
        def effect(*args: Any, **kwargs: Any) -> Any:
            named = (name, *args, *kwargs.items()) if key is None else key(*args, **kwargs)
            return self.effect(named, partial(called, *args, **kwargs))

        # `None` is for a mock or a lazy proxy, which creates the attribute on access.
        is_static = isinstance(inspect.getattr_static(owner, name, None), (classmethod, staticmethod))
        self.replace(owner, name, staticmethod(effect) if is_static and inspect.isclass(owner) else effect)

    def effect(self, key: Any, do: Callable[[], T] | None = None) -> T | None:
        """Do something, and record it; the worker may die before and after it.

        Args:
            key: names it among others.
            do: does it; `None`: it is only recorded. Returns its result; after an exception it is not
                recorded. A coroutine has had its effect when it was awaited.
        """
        self._point(f"before the effect {_shown(key)}")
        result = None if do is None else do()
        if inspect.iscoroutine(result):
            return cast("T", self._awaited(key, result))
        self._took_place(key)
        return result

    async def _awaited(self, key: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
        result = await coroutine
        self._took_place(key)
        return result

    def _took_place(self, key: Any) -> None:
        shown = _shown(key)
        self.effects.append(key)
        self._note(f"effect {shown}", self._innermost)
        self._point(f"after the effect {shown}")

    def once(self, *keys: Any) -> None:
        """Assert that each effect took place once: those of these keys or, without keys, at least one."""
        self.at_most_once()
        if not self.effects:
            of_keys = f" of {_shown(list(keys))}" if keys else ""
            raise AssertionError(f"expected each effect once, and none took place{of_keys}")
        missing = [key for key in keys if key not in self.effects]
        if missing:
            raise AssertionError(f"expected each effect once, and none of {_shown(missing)} took place")

    def at_most_once(self) -> None:
        """Assert that no effect took place twice."""
        counts = Counter(map(repr, self.effects))
        shown = {repr(key): _shown(key) for key in self.effects}
        twice = {key: count for key, count in counts.items() if count > 1}
        if twice:
            told = ", ".join(f"{shown[key]} took place {count} times" for key, count in twice.items())
            raise AssertionError(f"expected each effect once, but {told}")

    def new_worker(self) -> SimulatedWorker:
        worker = cast("SimulatedWorker", super().new_worker())
        worker.before_settlement = self._before_settlement
        return worker

    def work_once(self) -> bool:
        """Do what `World.work_once` does, with faults before, and a redrive of dead letters last."""
        wait = self._next_message()
        has_messages = any(self.sqs.bodies(queue.url) for queue in self.queues)
        if has_messages:
            self._between(wait)
        if super().work_once():
            return True
        letters = any(self.sqs.bodies(letters.url) for letters in self._letter_queues())
        if letters and self._schedule.due(WHEN_EMPTY) is not None:
            self._note("an operator moves the dead letters back")
            return bool(self.redrive())
        return False

    def take(self, queue: Queue) -> bool:
        return bool(self.sqs.visible(queue.url)) and self._take_by(self._living(), queue)

    def _living(self) -> SimulatedWorker:
        """The worker that receives next: a new one if none is idle, or at random."""
        idle = [worker for worker in self.workers if worker not in self._busy]
        if not idle or self._busy or (self.steps and self._schedule.random.random() < 1 / 2):
            return self.new_worker()
        return cast("SimulatedWorker", idle[0])

    def _take_by(self, worker: SimulatedWorker, queue: Queue) -> bool:
        self._busy.append(worker)
        try:
            return worker.take(queue)
        except WorkerDiedError as death:
            if death.worker is not worker:
                raise
            return True
        finally:
            self._busy.pop()
            if worker.left is not None:
                self._end_deploy(worker)

    def _between(self, wait: float) -> None:
        # Not always: otherwise no task that fails for good would come back after its dead letter.
        may_redrive = self._schedule.random.random() < 1 / 2
        fault = self._schedule.due(BETWEEN_RUNS if may_redrive else BETWEEN_RUNS - WHEN_EMPTY)
        if fault is Fault.DELAY:
            seconds = self._schedule.random.choice(DELAYS)
            self._note(f"nobody receives the message for {_duration(seconds)}")
            self.pass_time(seconds)
        elif fault is Fault.REDRIVE:
            self.pass_time(wait if 0 < wait < float("inf") else 0.0)
            self._redrive_unrun()

    def _redrive_unrun(self) -> None:
        """Use up the receives of all visible messages, and move the dead letters back."""
        at_once = ReceiveOptions(0)
        for queue in self.queues:
            if self._context.redrive.peek(queue) is None:
                continue
            while self.sqs.receive(queue.url, 10, 0, at_once):
                pass
        if self.redrive():
            self._note("SQS moves the message to the dead letters, and an operator moves it back")

    @property
    def _innermost(self) -> SimulatedWorker | None:
        """The worker of the innermost run; `None` while no message is held."""
        return self._busy[-1] if self._busy else None

    def _point(self, where: str) -> None:
        """Pass a point of a run, where a fault may happen."""
        worker = self._innermost
        if worker is None:
            return
        if worker.dead:
            raise WorkerDiedError(worker)
        if worker.left is not None:
            worker.left -= 1
            if worker.left < 0:
                self._hand_back(worker, where)
        fault = self._schedule.due(IN_A_RUN)
        if fault is not None:
            self._happen(fault, worker, where)
        elif Fault.OVERLAP in self.faults:
            self._overlap()

    def _overlap(self) -> None:
        """At random, let another worker run another message that waits; at most two runs overlap."""
        waiting = [queue for queue in self.queues if self.sqs.visible(queue.url)]
        if self.seed is None or len(self._busy) > 1 or not waiting:
            return
        if self._schedule.random.random() < OVERLAPS:
            self._run_meanwhile(waiting[0])

    def _happen(self, fault: Fault, worker: SimulatedWorker, where: str) -> None:
        delivery = worker.running
        if delivery is None:
            return
        queue = delivery.queue
        if not delivery.held and fault not in ENDS_OF_A_WORKER:
            return  # it was acknowledged before it ran: SQS has nothing to deliver again
        match fault:
            case Fault.DEATH:
                self._die(worker, where)
            case Fault.SECOND_DELIVERY if not queue.fifo:
                self._note(f"SQS delivers the message a second time, {where}")
                self.sqs.change_visibility(queue.url, [(delivery.handle, 0)])
                self._run_meanwhile(queue)
            case Fault.LAPSE:
                seconds = worker.options.for_queue(queue.name).visibility_timeout + 1
                self._note(f"{worker.name} stands still for {_duration(seconds)}, {where}")
                worker.frozen = True
                self.pass_time(seconds)
                self._run_meanwhile(queue)
                worker.frozen = False
                self._note(f"{worker.name} goes on")
                worker.send_all()
            case Fault.DEPLOY:
                worker.left = self._schedule.random.randint(0, 2)
                self._note(f"{worker.name} gets SIGTERM, {where}")
                self._leases.stop()
            case _:
                pass

    def _run_meanwhile(self, queue: Queue) -> None:
        """Let another worker receive and run a message, while the run at the point waits."""
        with self._leases_of_another(), ended_if_it_waits(self._die_waiting):
            self.take(queue)

    @contextmanager
    def _leases_of_another(self) -> Iterator[None]:
        stopping = self._leases.stopping
        self._leases.stop(stopping=False)
        try:
            yield
        finally:
            self._leases.stop(stopping=stopping)

    def _die(self, worker: SimulatedWorker, where: str) -> None:
        self._note(f"{worker.name} dies, {where}")
        self._remove(worker)
        raise WorkerDiedError(worker)

    def _die_waiting(self) -> None:
        """End the innermost run, because it waits for an interrupted one. In a signal handler."""
        self._die(self._busy[-1], "after it has waited for 0.2 s, as for a lock of another run")

    def _hand_back(self, worker: SimulatedWorker, where: str) -> None:
        delivery = worker.running
        if delivery is not None and not delivery.held:
            self._note(f"{worker.name} ends, and its run with it, {where}: its time is over")
        else:
            self._note(f"{worker.name} hands the message back and ends, {where}: its time is over")
            if delivery is not None:
                worker.hand_back(delivery)
        self._remove(worker)
        raise WorkerDiedError(worker)

    def _end_deploy(self, worker: SimulatedWorker) -> None:
        self._leases.stop(stopping=False)
        if not worker.dead:
            self._note(f"{worker.name} ends in order")
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        worker.die()
        self.workers.remove(worker)

    def _before_settlement(self, worker: SimulatedWorker, delivery: Delivery, settlement: Settlement) -> None:
        """Let a fault happen when a run has ended and its end is not reported yet."""
        if delivery.acknowledged_early:
            return  # the run begins only now
        if delivery is not worker.running:
            return
        if not self._busy or self._busy[-1].left is not None:
            return
        fault = self._schedule.due(AT_THE_END if isinstance(settlement, Delete) else {Fault.DEATH})
        worker.running = None
        if fault is Fault.DEATH:
            self._die(worker, "after its run and before that is settled")
        if fault is Fault.LOST_DELETE:
            self._note("SQS will answer the delete, and forget it")
            self.sqs.deletes_to_lose += 1

    def _note(self, step: str, worker: Worker | None = None) -> None:
        by = "" if worker is None else f"{worker.name}: "
        self.steps.append(f"{'  ' * max(0, len(self._busy) - 1)}{self.clock.passed:>9,.0f} s  {by}{step}")

    def _tell(self, event: DeliveryEvent) -> None:
        worker = self._innermost
        count = event.delivery.receive_count
        match event:
            case events.Received():
                self._note(f"receives the message of {event.delivery.task}, receive {count}", worker)
            case events.Failed(error=error, last=last):
                self._note(f"the run fails{' for good' if last else ''}: {_shown(error)}", worker)
            case events.Hidden(seconds=seconds) | events.Parked(seconds=seconds):
                self._note(f"hides the message for {_duration(seconds)}", worker)
            case events.DeadLettered(reason=reason):
                self._note(f"sends a dead letter: {reason}", worker)
            case events.Deleted():
                self._note("deletes the message", worker)
            case events.Released():
                self._note("gives the message back", worker)
            case events.Lost(reason=reason):
                self._note(f"has lost the message: {reason}", worker)
            case events.FinishedBefore():
                self._note("knows that the message is done", worker)
            case _:
                pass

    def story(self) -> str:
        """All steps so far, a line each."""
        return "\n".join(self.steps)


Test = Callable[..., object]
SimulatedTest = Callable[..., None]


@overload
def simulate(test: Test) -> SimulatedTest: ...
@overload
def simulate(
    *, seeds: int = ..., seed: int | None = ..., faults: Collection[Fault] = ...
) -> Callable[[Test], SimulatedTest]: ...
def simulate(
    test: Test | None = None,
    *,
    seeds: int = 200,
    seed: int | None = None,
    faults: Collection[Fault] = tuple(Fault),
) -> SimulatedTest | Callable[[Test], SimulatedTest]:
    """Run a test once without faults, and then under the schedule of each seed.

    The test has a parameter `sim`, the `Simulation`: it makes its state anew, runs tasks by `sim.run`, and
    asserts what must hold. Fixtures are made once for all seeds.

    Args:
        test: without arguments the decorator needs no parentheses.
        seeds: how many: 0, 1, 2 ...
        seed: this one alone, to replay a failure; so does the variable `SQS_SIMULATION_SEED`.
        faults: those that may happen.

    Raises:
        SimulationFailedError: the test failed; its text has the seed and the steps.
        TypeError: the test has no parameter `sim`, or is none that runs when it is called.
        ValueError: a seed, the number of seeds or the faults are none.
    """
    _require("seeds", seeds, isinstance(seeds, int) and seeds > 0, "a number of seeds above 0")
    is_seed = seed is None or (isinstance(seed, int) and seed >= 0)
    _require("seed", seed, is_seed, "a number from 0 on")
    are_known = isinstance(faults, Collection) and all(isinstance(fault, Fault) for fault in faults)
    _require("faults", faults, are_known and len(faults), "a list of celery_sqs_visibility.testing.Fault")
    if test is None:
        return partial(_under_seeds, seeds=seeds, seed=seed, faults=faults)
    return _under_seeds(test, seeds, seed, faults)


def _under_seeds(test: Test, seeds: int, seed: int | None, faults: Collection[Fault]) -> SimulatedTest:
    if not callable(test):
        raise TypeError(f"expected a test, got {test!r}: is it @simulate(seeds={test!r})?")
    if inspect.iscoroutinefunction(test) or inspect.isgeneratorfunction(test):
        raise TypeError(f"expected a plain function, got {_name(test)}, which a call does not run")
    signature = inspect.signature(test)
    if "sim" not in signature.parameters:
        raise TypeError(f"expected a test with a parameter 'sim', got {_name(test)}{signature}")

    @wraps(test)
    def under_seeds(*args: Any, **kwargs: Any) -> None:
        chosen, bound = _chosen(seeds, seed), partial(test, *args, **kwargs)
        with _silent() if len(chosen) > 1 else nullcontext():
            points = _run_one(bound, Simulation(None))
            for each in chosen:
                _run_one(bound, Simulation(each, points, faults))

    left = [each for each in signature.parameters.values() if each.name != "sim"]
    vars(under_seeds)["__signature__"] = signature.replace(parameters=left)
    return under_seeds


def _chosen(seeds: int, seed: int | None) -> Collection[int]:
    if seed is None and (given := os.environ.get(SEED_VARIABLE)):
        _require(SEED_VARIABLE, given, given.isdecimal(), "a number from 0 on")
        seed = int(given)
    return range(seeds) if seed is None else [seed]


@contextmanager
def _silent() -> Iterator[None]:
    """Inside, nothing is logged: hundreds of runs would hide the failing one. A replay logs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _run_one(test: Test, sim: Simulation) -> int:
    """Run one simulation. Returns its number of points."""
    result: object = None
    try:
        with sim:
            result = test(sim=sim)
    except BaseException as error:
        if not isinstance(error, (Exception, *_failures_of_pytest())):
            raise
        raise SimulationFailedError(_failure(sim, error), sim.seed) from error
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        getattr(result, "close", lambda: None)()  # or Python would warn, too
        raise TypeError(f"expected a plain function, got one that returned {result!r} and did not run")
    return sim.points


def _failures_of_pytest() -> list[type[BaseException]]:
    """The exception of `pytest.fail`, which is not an `Exception`; empty without pytest."""
    pytest = sys.modules.get("pytest")
    return [] if pytest is None else [pytest.fail.Exception]


def _failure(sim: Simulation, error: BaseException) -> str:
    seed = sim.seed
    said = str(error).split("\n", 1)[0] or repr(error)
    under = "without a fault" if seed is None else f"under the schedule of seed {seed}"
    lines = [f"{said}\n\nIt failed {under}:", *sim.steps]
    if seed is not None:
        chosen = [f"seed={seed}"]
        if set(sim.faults) != set(Fault):
            chosen.append(f"faults=[{', '.join(map(str, sim.faults))}]")
        lines.append(
            f"Replay it with @simulate({', '.join(chosen)}), or {SEED_VARIABLE}={seed} in the environment."
        )
    return "\n".join(lines)


def _require(name: str, value: object, holds: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected} as {name}, got {value!r}")


def _name(test: Test) -> str:
    return getattr(test, "__name__", repr(test))


def _shown(key: Any) -> str:
    text = key if isinstance(key, str) else repr(key)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 and seconds % 3600 == 0 else f"{seconds:g} s"  # noqa: PLR2004
