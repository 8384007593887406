"""`apublish`: publishing from asyncio, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any, Final

from celery.canvas import Signature

#: Publications that are under way at the same time; others wait. They share requests.
THREADS: Final = 16


async def apublish(signature: Signature[Any], **options: Any) -> Any:
    """Publish a signature, a chain, a group or a chord, as its `apply_async(**options)` does.

    Returns when SQS has the message, without blocking the event loop meanwhile. Publications that are awaited
    at the same time share requests, and take part in a block of `publish_batch` around them.

    One that is cancelled before it has begun is not sent; one that is under way is completed.

    Returns:
        What `apply_async` returns: an `AsyncResult`, or a `GroupResult`.

    Raises:
        Exception: as `apply_async` does.
    """
    publish = partial(copy_context().run, signature.apply_async, **options)
    return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), publish)


@lru_cache(maxsize=1)
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Those of this process, for which the interpreter's end waits. A forked child has its own."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="sqs-apublish")
