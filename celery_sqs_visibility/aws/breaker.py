"""Circuit breakers for dependencies (a key store, S3): after one unanswered request, others fail at once.

Instants are on the monotonic clock.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock, sleep

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Starts a thread with this name. Returns `None` if it could not be started.
StartThread = Callable[[Callable[[], None], str], threading.Thread | None]


class Breaker:
    """Passes requests on while they are answered. After one that was not, a thread probes. Any thread.

    Args:
        dependency: its name in the log.
        probe: makes a request that changes nothing. A refusal counts as an answer.
        is_unanswered: tells if an exception means that no answer came in time.
        start: starts the probing thread.
        clock: the monotonic clock.
        wait: waits for some seconds.

    Attributes:
        error: why requests are refused; empty while they are passed on.
    """

    def __init__(
        self,
        dependency: str,
        probe: Callable[[], object],
        is_unanswered: Callable[[Exception], bool],
        start: StartThread,
        clock: Clock = SYSTEM_CLOCK,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        self._dependency = dependency
        self._probe = probe
        self._is_unanswered = is_unanswered
        self._start = start
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()  # guards writes to everything below
        self._circuit = Circuit()
        self._probing = False
        self._tell: Callable[[float], object] = lambda _answers_since: None
        self.error = ""

    def call(self, request: Callable[[], T], refuse: Callable[[str], Exception]) -> T:
        """Make the request, or raise `refuse`'s exception while the dependency does not answer."""
        if why := self.error:
            raise refuse(f"{why}; it is not asked again until it answers")
        since = self._clock.monotonic()
        try:
            return request()
        except Exception as error:
            if self._is_unanswered(error):
                self.unanswered(str(error), since)
            raise

    def unanswered(self, error: str, since: float) -> None:
        """Note that a request made at `since`, maybe by another process, had no answer. Does not block."""
        with self._lock:
            circuit = self._circuit.unanswered(since, self._clock.monotonic())
            if circuit is self._circuit:
                return
            self._circuit, self.error = circuit, error
            self._tell(math.inf)
            starts, self._probing = not self._probing, True
        sentence = "%s does not answer, and is left alone until it answers a probe: %s"
        log_safely(logger.warning, sentence, self._dependency, error)
        if starts and self._start(self._probe_until_answered, "sqs-probe") is None:
            with self._lock:
                self._probing = False
            self._close()  # nobody would notice an answer, so let requests through

    def answered(self, at: float) -> None:
        """Note that another process's probe was answered at that instant. Does not block."""
        with self._lock:
            self._circuit = self._circuit.answered_elsewhere(at)
            self.error = self.error if self._circuit.is_open else ""

    def follow(self, tell: Callable[[float], object]) -> None:
        """Call `tell`, now and at each change, with the instant since which requests are passed on.

        It is infinite while they are refused. `tell` is called in any thread and must not block.
        """
        with self._lock:
            self._tell = tell
            tell(math.inf if self._circuit.is_open else self._circuit.closed_at)

    def _probe_until_answered(self) -> None:
        began = self._clock.monotonic()
        while (probe_at := self._next_probe_at()) < math.inf:
            self._wait(max(0.0, probe_at - self._clock.monotonic()))
            if self._answers():
                self._close()
            else:
                with self._lock:
                    self._circuit = self._circuit.probed(self._clock.monotonic(), answered=False)
        log_safely(
            logger.info, "%s answers again after %.0f s", self._dependency, self._clock.monotonic() - began
        )

    def _next_probe_at(self) -> float:
        """Return the instant of the next probe; infinite if the circuit is closed and the thread may end."""
        with self._lock:
            self._probing = self._circuit.is_open
            return self._circuit.probe_at

    def _close(self) -> None:
        with self._lock:
            self._circuit, self.error = self._circuit.probed(self._clock.monotonic(), answered=True), ""
            self._tell(self._circuit.closed_at)

    def _answers(self) -> bool:
        try:
            self._probe()
        except Exception as error:  # noqa: BLE001 - a refusal is an answer
            return not self._is_unanswered(error)
        return True


#: Seconds from an unanswered request or probe to the next probe.
PAUSE_SECONDS: Final = 1.0

#: The pause doubles, up to this, for a dependency that answers probes but not requests.
MAX_PAUSE_SECONDS: Final = 16.0

#: A dependency that has answered for this long has recovered.
STEADY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a breaker: closed while the dependency answers, open while only probes ask it.

    Attributes:
        probe_at: the next probe; infinite while closed.
        opened_at: when an unanswered request last opened it.
        closed_at: when an answered probe last closed it.
        relapses: how often it was reopened before the dependency had recovered.
    """

    probe_at: float = math.inf
    opened_at: float = -math.inf
    closed_at: float = -math.inf
    relapses: int = 0

    @property
    def is_open(self) -> bool:
        """Return whether only probes ask the dependency."""
        return self.probe_at < math.inf

    def unanswered(self, since: float, now: float) -> Circuit:
        """Return the circuit after a request made at `since` that has had no answer by `now`.

        Changes nothing if the circuit is open, or if a later probe was answered.
        """
        if self.is_open or since < self.closed_at:
            return self
        relapses = self.relapses + 1 if now - self.closed_at < STEADY_SECONDS else 0
        pause = min(PAUSE_SECONDS * 2.0 ** min(relapses, 16), MAX_PAUSE_SECONDS)
        return replace(self, probe_at=now + pause, opened_at=now, relapses=relapses)

    def probed(self, now: float, *, answered: bool) -> Circuit:
        """Return the circuit after a probe. An answer closes it."""
        if not self.is_open:  # closed meanwhile: see `answered_elsewhere`
            return self
        if answered:
            return replace(self, probe_at=math.inf, closed_at=now)
        return replace(self, probe_at=now + PAUSE_SECONDS)

    def answered_elsewhere(self, at: float) -> Circuit:
        """Return the circuit after another process's probe was answered at that instant."""
        return self.probed(at, answered=True) if at > self.opened_at else self
