"""Brakes of tasks: while what they depend on fails, their messages wait without a run, an attempt or a slot.

The worker holds some of these messages, from which it picks the runs to try. The others wait as copies, like
those of a paused task. A queue that brings nothing else is polled less often meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.core.settlements import Why
from celery_sqs_visibility.events import BrakeChanged, Received, emit, log_safely, subscribe
from celery_sqs_visibility.policy.brake import Brake, Stage, Start
from celery_sqs_visibility.policy.eta import LEAD_SECONDS
from celery_sqs_visibility.policy.health import BrakeFacts

if TYPE_CHECKING:
    from celery_sqs_visibility.stores.port import ExclusiveStore
    from celery_sqs_visibility.transport.broker_context import BrokerContext
    from celery_sqs_visibility.worker.brakes_of_fleet import BrakesOfFleet
    from celery_sqs_visibility.worker.waiting_requests import WaitingRequests

logger = get_logger(__name__)

#: The number of messages held for brakes, to choose from, and to continue with at once; twice the slots if
#: that is more. The rest is left to other workers.
MIN_HELD: Final = 20

#: A queue that brings only messages beyond that number for the first of these times rests for the second.
POLL_SECONDS: Final = 5.0
REST_SECONDS: Final = 20.0

#: How often the worker checks whether a waiting message may start.
LOOK_SECONDS: Final = 0.25


@dataclass(eq=False)
class Line:
    """A brake, and the requests of this worker that wait for it, in order."""

    name: str
    brake: Brake = field(default_factory=Brake)
    tasks: set[str] = field(default_factory=set)
    waiting: list[Any] = field(default_factory=list)
    error: str = ""  # the latest

    def facts(self, now: float) -> BrakeFacts:
        """The state of the brake, for operators."""
        brake, tasks = self.brake, tuple(sorted(self.tasks))
        stage, seconds = brake.stage.name.lower(), round(brake.lasted(now), 1)
        return BrakeFacts(self.name, stage, seconds, brake.tries, len(self.waiting), self.error, tasks)


class Brakes:
    """Stands before the pool: a request is not handed over unless its brake lets it start.

    Workers that share a `store` brake together.

    Requests wait, and are taken from their lines, on Celery's main thread, or, without an event loop, on its
    timer's thread. Runs end on any thread: the pump's lock guards the brakes.
    """

    def __init__(
        self, waiting: WaitingRequests, context: BrokerContext, store: ExclusiveStore | None
    ) -> None:
        self._waiting = waiting
        self._receiving = context.receiving
        self._rests = context.receiving.pauses.rests
        self._lock, self._now = context.pump.lock, context.pump.now
        self._lines: dict[str, Line] = {}
        self._others_came: dict[str, float] = {}  # by queue, when a message of another task last came
        self._looks = False  # whether Celery's timer is set to call `_look`
        self._receiving.brakes = self.facts
        self.fleet: BrakesOfFleet | None = None
        if store is not None:
            from celery_sqs_visibility.worker.brakes_of_fleet import BrakesOfFleet  # noqa: PLC0415 - few share

            self.fleet = BrakesOfFleet(store, context.pump, lambda name: self.line(name).brake, self.tell)
            self.fleet.lane.start()
        self._unsubscribe = subscribe(self._received, Received, when=lambda: self._looks)

    def close(self) -> None:
        """Stop listening, and let another worker of the fleet try, because this one ends. Does not wait."""
        self._unsubscribe()
        if self.fleet is not None:
            self.fleet.close()

    def connected(self) -> None:
        """Forget waiting requests, as Celery has: a new connection drops them and clears its timer."""
        for line in self._lines.values():
            line.waiting.clear()
        self._looks = False
        self._end_rests()

    def facts(self) -> list[BrakeFacts]:
        """The state of every brake that was used. Any thread."""
        lines = list(self._lines.values())
        for line in lines:
            with self._lock:
                before = line.brake.stage
                line.brake.release_if_quiet(self._now())
            self.tell(line.name, before)
        return [line.facts(self._now()) for line in lines]

    def line(self, name: str) -> Line:
        """The line of the brake of that name. Any thread."""
        line = self._lines.get(name)
        return line if line is not None else self._lines.setdefault(name, Line(name))

    def wait(self, request: Any) -> bool:
        """Let a request that is about to run wait if its brake requires it. Returns whether it waits."""
        line, delivery = self.line(request.brake_name), request.delivery
        line.tasks.add(request.name)
        if delivery is None or not delivery.held or line.brake.is_current(request.brake_start):
            return False
        if not line.waiting and (start := self._start(line)) is not None:  # requests in line go first
            request.begin(start)
            return False
        self._hold(line, request)
        state.task_ready(request)
        return True

    def _start(self, line: Line) -> Start | None:
        with self._lock:
            return line.brake.start(self._now())

    def end(self, name: str, start: Start, failed: bool | None, error: str) -> None:  # noqa: FBT001
        """Note how a run that began with `start` has ended. Any thread."""
        line = self.line(name)
        with self._lock:
            now, before = self._now(), line.brake.stage
            line.error = error or line.error
            line.brake.end(start, failed, now)
            changed = line.brake.stage is not before
            if self.fleet is not None and (failed or changed):
                self.fleet.ask(name, now, changed=changed)
        self.tell(name, before)

    def tell(self, name: str, before: Stage) -> None:
        """Log and emit a change of a brake's stage. Any thread, without a lock."""
        line = self.line(name)
        if line.brake.stage is before:
            return
        facts = line.facts(self._now())
        if before is Stage.OFF:
            log_safely(
                logger.warning,
                "brake %r is applied: most of the last runs have failed, the latest with %s. Their messages "
                "wait, and one is tried at a time",
                name,
                facts.error or "another worker's error",
            )
        elif facts.stage == "off":
            log_safely(logger.info, "brake %r is released: its last runs have succeeded", name)
        else:
            sentence = "brake %r is %s, after %s s; tries: %s"
            log_safely(logger.info, sentence, name, facts.stage, facts.seconds, facts.tries)
        emit(BrakeChanged(name, facts.stage, facts.seconds, facts.tries, facts.error))

    def _hold(self, line: Line, request: Any) -> None:
        """Hold a request here if there are few or it may start soon; otherwise let it wait as a copy."""
        slots, held = self._receiving.slots, sum(len(each.waiting) for each in self._lines.values())
        makes_room = held < max(MIN_HELD, 2 * slots().number if slots else 0)
        if not makes_room and line.brake.stage is Stage.ON:
            now, rests = self._now(), self._rest(request.delivery.queue.name)
            if request.put_off(0.0 if rests else LEAD_SECONDS + line.brake.pause(now), Why.BRAKE):
                return
        self._waiting.hold(request, makes_room=makes_room)
        line.waiting.append(request)
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self._waiting.call_after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Hand over requests that may start; for a try, the one with the fewest attempts. Celery's timer."""
        self._looks = False
        if any(line.waiting for line in self._lines.values()):
            self._look_soon()  # first: an exception below is only logged by Celery's timer
        for line in list(self._lines.values()):
            settled = {each for each in line.waiting if not each.delivery.held}
            line.waiting = [each for each in line.waiting if each not in settled]
            for request in settled:
                self._waiting.hand_over(request)
            while line.waiting and (start := self._start(line)) is not None:
                request = min(line.waiting, key=lambda each: each.request_dict.get("retries") or 0)
                line.waiting.remove(request)
                request.begin(start)
                self._waiting.apply_eta_task(request)
        self._end_rests()

    def _rest(self, queue: str) -> bool:
        """Let a queue rest that for some time has brought only more messages than are held.

        Returns whether it rests: then copies need not wait.
        """
        now = self._now()
        if self._brings_others(queue):
            return False
        if now >= self._rests.setdefault(queue, now) + POLL_SECONDS:
            self._rests[queue] = now + REST_SECONDS
            self._receiving.notice_pause(queue)
        return now < self._rests[queue]

    def _end_rests(self) -> None:
        waits = any(line.waiting and line.brake.stage is Stage.ON for line in self._lines.values())
        for queue in list(self._rests):
            if not waits or self._brings_others(queue):
                del self._rests[queue]
                self._receiving.notice_pause(queue)

    def _brings_others(self, queue: str) -> bool:
        """Whether the queue has recently brought messages of tasks that don't wait for a brake."""
        return self._now() - self._others_came.get(queue, -math.inf) <= REST_SECONDS

    def _received(self, event: Received) -> None:
        """Note when a message of another task came, while messages wait for brakes. A thread that polls."""
        facts = event.delivery
        if self._looks and not any(facts.task in line.tasks for line in list(self._lines.values())):
            self._others_came[facts.queue] = self._now()
