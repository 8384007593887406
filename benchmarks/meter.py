"""What passes through the fault proxy, and what it costs whom.

A meter is a fault that lets everything through. It stands behind the latency, so its times are those at
which SQS has done its work.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

import paths  # noqa: F401
import psutil
from support.faults import latency
from support.proxy import FaultProxy


@dataclass(frozen=True)
class Passed:
    """One request: when SQS was asked and when it had answered (monotonic), and both halves."""

    asked: float
    at: float
    action: str
    parameters: dict
    answer: bytes


@dataclass(frozen=True)
class Moment:
    """The time, and the CPU seconds that processes had used by then."""

    at: float
    requests: int
    cpu: dict[str, float]


@dataclass
class Clockwork:
    """Processes by name whose CPU time is read; that of a tree is its descendants', too."""

    processes: dict[str, psutil.Process] = field(default_factory=dict)
    trees: set[str] = field(default_factory=set)

    def watch(self, **pids):
        self.processes.update({name: psutil.Process(pid) for name, pid in pids.items()})

    def watch_tree(self, **pids):
        self.watch(**pids)
        self.trees.update(pids)

    def now(self, requests=0):
        cpu = {}
        for name, process in self.processes.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                descendants = process.children(recursive=True) if name in self.trees else []
                cpu[name] = sum(sum(one.cpu_times()[:2]) for one in (process, *descendants))
        return Moment(time.monotonic(), requests, cpu)


class Meter:
    """Counts requests, and takes the moment of the first message received and of the last deleted.

    Args:
        clockwork: whose CPU time is of interest.
        tasks: how many deletions make the last.
    """

    def __init__(self, clockwork=None, tasks=0):
        self.passed: list[Passed] = []
        self.first: Moment | None = None
        self.last: Moment | None = None
        self.done = threading.Event()
        self.received = self.deleted = 0
        self._tasks = tasks
        self.clockwork = clockwork or Clockwork()
        self._lock = threading.Lock()  # guards everything above

    def __call__(self, request, forward, _removed):
        asked = time.monotonic()
        answer = forward(request)
        with self._lock:
            self.passed.append(
                Passed(asked, time.monotonic(), request.action, request.parameters, answer.body)
            )
            self._note(request, answer)
        return answer

    def count(self, *actions):
        with self._lock:
            return sum(not actions or one.action in actions for one in self.passed)

    def _note(self, request, answer):
        if request.action == "ReceiveMessage":
            self.received += answer.body.count(b'"ReceiptHandle"')
            if self.received and self.first is None:
                self.first = self.clockwork.now(len(self.passed) - 1)
        elif request.action.startswith("DeleteMessage"):
            self.deleted += len(request.parameters.get("Entries", [None]))
            if self._tasks and self.deleted >= self._tasks and self.last is None:
                self.last = self.clockwork.now(len(self.passed))
                self.done.set()


@contextlib.contextmanager
def metered(upstream, seconds, meter, *answerers):
    """A proxy that adds so much latency to each call, and is read by the meter, before others may answer."""
    with FaultProxy(upstream) as proxy:
        for fault in (*([latency(seconds)] if seconds else []), meter, *answerers):
            proxy.inject(fault)
        yield proxy
