"""What a span of work takes, less what the fake SQS takes: one gauge counts it, one weighs, one times it."""

from __future__ import annotations

import gc
import time
import tracemalloc

from cost_counter import Counter

#: The other end of the network, and the benchmark itself.
NOT_OURS = (
    "*/aws/fake*",
    "*/stores/memory.py",
    "*/uuid.py",
    "*/benchmarks/*",
    "*/tests/support/*",
    tracemalloc.__file__,
)
MICROSECONDS = 1e6


class Count(Counter):
    """Calls and bytecodes."""

    def prepare(self):
        """It is about to begin."""

    def weigh(self):
        """It weighs nothing."""

    def figures(self):
        tallies = self.tallies.values()
        return {
            "calls": sum(each.calls + each.c_calls for each in tallies),
            "bytecodes": sum(each.bytecodes for each in tallies),
        }


class Memory:
    """Bytes that Python's allocator gave since `prepare` and that are still in use at `stop`."""

    def __init__(self):
        self._bytes = None

    def prepare(self):
        gc.collect()
        tracemalloc.start()

    def start(self):
        if not tracemalloc.is_tracing():
            self.prepare()

    def stop(self):
        if self._bytes is None:
            self.weigh()

    def weigh(self):
        gc.collect()
        filters = [tracemalloc.Filter(inclusive=False, filename_pattern=each) for each in NOT_OURS]
        traces = tracemalloc.take_snapshot().filter_traces(filters).traces
        self._bytes = sum(trace.size for trace in traces)

    def pause(self):
        """The fake is told apart by the file that allocates."""

    resume = pause

    def figures(self):
        return {"bytes": self._bytes}


class Time:
    """Microseconds of this process's CPU."""

    def __init__(self):
        self._began = self._seconds = 0.0

    def prepare(self):
        """It is about to begin."""

    def weigh(self):
        """It weighs nothing."""

    def start(self):
        gc.collect()
        self._seconds = 0.0
        self.resume()

    def resume(self):
        self._began = time.process_time()

    def pause(self):
        self._seconds += time.process_time() - self._began

    stop = pause

    def figures(self):
        return {"µs": self._seconds * MICROSECONDS}


GAUGES = {"count": Count, "memory": Memory, "time": Time}
