"""Counts bytecodes: what work costs, without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable


def bytecodes(work: Callable[[], object]) -> int:
    """How many bytecodes of Python `work()` takes, on this thread."""
    count = 0

    def trace(frame, event, _arg):
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
