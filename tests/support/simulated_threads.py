"""Threads on a clock that the test turns: one of them runs at a time, and no time passes while it does."""

from __future__ import annotations

import heapq
import itertools
import threading


class _ClosedError(BaseException):
    """The test is over."""


class SimulatedThreads:
    """Real threads, in the same order in each run. `advance` and `close` belong to the test's own thread."""

    def __init__(self, clock):
        self._clock = clock
        self._ties = itertools.count()
        self._waiting = []  # a heap: (instant, tie-break, what lets the thread run)
        self._paused = threading.Semaphore(0)  # released when the thread that runs waits, or ends
        self._error = None
        self._closed = False

    def start(self, target, name="simulated"):
        """Have it run from now on; the thread."""
        gate = self._gate(0.0)
        thread = threading.Thread(target=self._run, args=(target, gate), name=name, daemon=True)
        thread.start()
        return thread

    def sleep(self, seconds):
        """Wait. Of a simulated thread."""
        gate = self._gate(seconds)
        self._paused.release()
        gate.acquire()
        if self._closed:
            raise _ClosedError

    def advance(self, seconds):
        """Let so much time pass; what a thread raises is raised here."""
        until = self._clock.monotonic() + seconds
        while self._waiting and self._waiting[0][0] <= until:
            self._next()
            if self._error is not None:
                raise self._error
        self._clock.advance(max(0.0, until - self._clock.monotonic()))

    def close(self):
        """End all threads."""
        self._closed = True
        while self._waiting:
            self._next()

    def _gate(self, seconds):
        gate = threading.Semaphore(0)
        heapq.heappush(self._waiting, (self._clock.monotonic() + seconds, next(self._ties), gate))
        return gate

    def _next(self):
        at, _, gate = heapq.heappop(self._waiting)
        self._clock.advance(max(0.0, at - self._clock.monotonic()))
        gate.release()
        self._paused.acquire()

    def _run(self, target, gate):
        gate.acquire()
        try:
            if not self._closed:
                target()
        except _ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `advance`
            self._error = error
        finally:
            self._paused.release()
