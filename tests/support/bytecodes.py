"""Counts bytecodes: what work costs, without a clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def bytecodes(work: Callable[[], object]) -> int:
    """How many bytecodes of Python `work()` takes, on this thread; what others left to collect is not its."""
    count = 0

    def trace(frame, event, _arg):
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
