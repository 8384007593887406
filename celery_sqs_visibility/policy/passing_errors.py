"""Transient errors in reading a message, as opposed to those that the message causes.

Lack of memory, a service that does not answer, or a nearly full stack is not the message's fault: it can be
read later, or by another worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from celery_sqs_visibility.errors import SQSError

#: Kinds of `OSError` that come from the system; decompressors raise a bare one for invalid data.
SYSTEM_ERRORS = (ConnectionError, TimeoutError)


def passes(error: BaseException) -> bool:
    """Returns whether an error, or one of its causes, is transient. Call it where the error is caught."""
    return any(map(_is_of_this_process, _causes(error)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: kombu wraps what its decoders raise."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _is_of_this_process(error: BaseException) -> bool:
    if isinstance(error, RecursionError):
        return _stack_depth() > sys.getrecursionlimit() // 2  # otherwise the message is nested too deep
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(error, SYSTEM_ERRORS)
    return isinstance(error, (MemoryError, SQSError))


def _stack_depth() -> int:
    frame = sys._getframe()  # noqa: SLF001 - CPython's and PyPy's, and `inspect` reads source files
    depth = 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth
