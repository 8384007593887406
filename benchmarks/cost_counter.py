"""Counts what runs: Python calls, calls into C, and bytecodes, by the function that they are charged to.

A count does not depend on the machine and its load. Functions of the package, of Celery and of Celery's
libraries are charged with what they call in Python's library. The benchmark's own code is not counted, nor
is the fake SQS with all that it calls, since a real one is at the other end of a network.
"""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass

OURS = "celery_sqs_visibility"
FAKES = (f"{OURS}.aws.fake", f"{OURS}.stores.memory")
CHARGED = (OURS, "celery", "kombu", "billiard", "vine")
BENCHMARKS = ("cost", "free_broker", "growth", "__main__")


@dataclass
class Tally:
    """Counts of one function: calls of it and of what it is charged with, and calls into C."""

    calls: int = 0
    c_calls: int = 0
    bytecodes: int = 0


class Counter:
    """Counts from `start` to `stop`, on the thread that calls them. There may be no other.

    Attributes:
        tallies: by module and qualified name of a function.
    """

    def __init__(self):
        self.tallies: dict[tuple[str, str], Tally] = {}
        self._by_code = {}  # id of a code object: the code, and its tracer; None: its caller is charged
        self._tally_of = {}  # tracer: tally
        self._by_function = {}
        self._before = None
        self._benchmark = self._new_tracer(Tally())
        self._fake = self._new_tracer(Tally())

    def start(self):
        """Count from here on: this thread, and the functions that have called this one."""
        frame = sys._getframe(1)  # noqa: SLF001 - documented for CPython
        while frame is not None:
            frame.f_trace = self._enter(frame)
            frame = frame.f_back
        self._before = sys.gettrace()  # coverage.py's, for one
        gc.disable()
        sys.setprofile(self._profile)
        sys.settrace(self._enter)

    def stop(self):
        sys.settrace(self._before)
        sys.setprofile(None)
        gc.enable()
        if threading.active_count() > 1:
            raise RuntimeError(f"what other threads did was not counted: {threading.enumerate()}")

    def pause(self):
        """The fake SQS begins, or ends, which its functions' module tells anyway."""

    resume = pause

    def _enter(self, frame, _event=None, _arg=None):
        """`sys.settrace`'s: a frame begins, or goes on."""
        code = frame.f_code
        known = self._by_code.get(id(code))
        if known is None:
            known = self._by_code[id(code)] = code, self._tracer(frame)
        tracer = known[1]
        caller = frame.f_back and frame.f_back.f_trace
        if caller is self._fake and tracer is not self._benchmark:
            tracer = self._fake
        elif tracer is None:
            tracer = caller or self._benchmark
        self._tally_of[tracer].calls += 1
        frame.f_trace_lines = False
        frame.f_trace_opcodes = tracer is not self._benchmark and tracer is not self._fake
        return tracer

    def _profile(self, frame, event, _arg):
        if event == "c_call" and (tally := self._tally_of.get(frame.f_trace)) is not None:
            tally.c_calls += 1

    def _tracer(self, frame):
        module = frame.f_globals.get("__name__") or ""
        if module.startswith(BENCHMARKS):
            return self._benchmark
        if module.startswith(FAKES):
            return self._fake
        if module.partition(".")[0] not in CHARGED:
            return None
        function = module, frame.f_code.co_qualname.removeprefix("__create_fn__.<locals>.")
        if function not in self._by_function:
            tally = self.tallies[function] = Tally()
            self._by_function[function] = self._new_tracer(tally)
        return self._by_function[function]

    def _new_tracer(self, tally):
        def count(_frame, event, _arg):
            if event == "opcode":
                tally.bytecodes += 1
            return count

        self._tally_of[count] = tally
        return count
