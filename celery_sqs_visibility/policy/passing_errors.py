"""Errors in reading a message that pass, told from those that the message causes.

A message causes only the errors that its bytes lead to. Memory that runs out, a service that does not answer,
or a stack of ours that is nearly used up is no fault of the message: it can be read later, or by another
worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from celery_sqs_visibility.errors import SQSError

#: Kinds of `OSError` that come from the system; decompressors raise a bare one for invalid data.
SYSTEM_ERRORS = (ConnectionError, TimeoutError)


def passes(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is no fault of the message. Called where it is caught."""
    return any(map(_is_of_this_process, _behind(error)))


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it; kombu wraps what its decoders raise."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _is_of_this_process(error: BaseException) -> bool:
    if isinstance(error, RecursionError):
        return _stack_depth() > sys.getrecursionlimit() // 2  # else what was read is nested that deep
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(error, SYSTEM_ERRORS)
    return isinstance(error, (MemoryError, SQSError))


def _stack_depth() -> int:
    frame = sys._getframe()  # noqa: SLF001 - CPython's and PyPy's, and `inspect` reads source files
    depth = 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth
