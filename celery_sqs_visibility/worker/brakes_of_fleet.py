"""Brakes of a fleet: workers that share a coordination store apply them together, and one of them tries.

The worker that tries has the brake's key in the store, like a run of an exclusive task. When a try has
succeeded, it saves the time of that in the store and releases the key. The others learn of it when they ask
for the key. A worker asks only after one of its own runs has failed.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import SQSError, StoreError, UnavailableError
from celery_sqs_visibility.policy.brake import Brake, Stage
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.stores.port import Acquired, ExclusiveStore

#: How often a worker asks while a brake is on, and after failures.
ASK_SECONDS: Final = 2.0

#: If the worker that tries dies, another one takes over after this time.
LEASE_SECONDS: Final = 10.0


class Answer(enum.Enum):
    """Answers of the store about a brake."""

    TRY = "this worker tries, as all do while the store does not answer"
    ELSEWHERE = "another worker has applied it, and tries"
    EASED = "another worker has eased it since it was applied here"


class BrakesOfFleet:
    """The work of the lane that asks the store. The lane's lock guards it and the brakes.

    Args:
        store: of the keys; only workers that share it brake together.
        brake_of: returns the brake with a name.
        tell: called with the name of a brake and its stage before an answer, without the lock.
    """

    def __init__(
        self,
        store: ExclusiveStore,
        pump: Pump,
        brake_of: Callable[[str], Brake],
        tell: Callable[[str, Stage], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._brake_of = brake_of
        self._tell = tell
        self._clock = clock
        self._owner = uuid.uuid4().hex
        self.lane: Lane[dict[str, Answer]] = pump.lane("asks whether another worker brakes", 1, self)
        self._due: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._closed = False

    def close(self) -> None:
        """Release the keys, because this worker ends and tries no more. Does not wait."""
        with self.lane.lock:
            self._closed = True
            for name in self._asked:
                self.ask(name, self._clock.monotonic(), changed=True)
        self.lane.stop()

    def ask(self, name: str, now: float, *, changed: bool = False) -> None:
        """Ask about a brake after a failed run; at once if its stage has changed. Under the lock."""
        if not changed:
            now = max(now, self._asked.get(name, -math.inf) + ASK_SECONDS)
        self._due[name] = min(now, self._due.get(name, now))
        self.lane.wake()

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `pump.Work`
        return min(self._due.values(), default=None)

    def ready(self) -> int:
        return 1

    def take(self, now: float) -> dict[str, Answer] | None:
        names = [name for name, due in self._due.items() if due <= now]
        for name in names:
            del self._due[name]
            self._asked[name] = now
        return dict.fromkeys(names, Answer.TRY) or None

    def send(self, batch: dict[str, Answer], _since: float) -> BatchResult:
        try:
            for name in batch:
                batch[name] = self._ask_store(name)
        except StoreError as error:
            raise UnavailableError(str(error)) from error
        return BatchResult({})

    def _ask_store(self, name: str) -> Answer:
        """Ask for the key. It is kept only for trying."""
        with self.lane.lock:
            brake, to_wall = self._brake_of(name), self._clock.wall() - self._clock.monotonic()
            stage, since = brake.stage, brake.began + to_wall
        key = f"brake:{name}"
        acquired = self._store.acquire(key, self._owner, LEASE_SECONDS)
        if not isinstance(acquired, Acquired):
            return Answer.ELSEWHERE
        eased = stage is Stage.ON and (acquired.checkpoint or 0.0) > since
        if stage is Stage.EASING:
            self._store.save(key, self._owner, since)
        if eased or stage is not Stage.ON or self._closed:
            self._store.release(key, self._owner)
        return Answer.EASED if eased else Answer.TRY

    def conclude(self, batch: dict[str, Answer], _since: float, _failed: Mapping[int, SQSError]) -> None:
        """Apply the answers. Without an answer this worker brakes alone; the store's guard logs errors."""
        before: dict[str, Stage] = {}
        with self.lane.lock:
            now = self._clock.monotonic()
            for name, answer in batch.items():
                brake = self._brake_of(name)
                before[name] = brake.stage
                if answer is Answer.ELSEWHERE and brake.stage is not Stage.ON:
                    brake.apply(now)
                elif answer is Answer.EASED and brake.stage is Stage.ON:
                    brake.ease(now)
                brake.may_try = answer is not Answer.ELSEWHERE
                if brake.stage is Stage.ON and not self._closed:
                    self.ask(name, now)
        for name, stage in before.items():
            self._tell(name, stage)
