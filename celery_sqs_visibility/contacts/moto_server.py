"""moto's SQS and DynamoDB, with fixes for behaviour that AWS does not have.

- Overlapping polls sometimes receive the same message. Here one thread at a time changes a queue.
- Long polls look for messages that become visible again once a second. Here they look 20 times a second.
- Visible and hidden messages are counted one after the other, and a message that becomes visible in between
  is in neither count. Here the clock stands still while they are counted.
- ReceiveRequestAttemptId is ignored. Here a repeated id receives the same messages again.
- DynamoDB's conditional updates are not atomic. Here they are.
- A look at a message makes six datetimes, and each request finds its service, its methods and its attributes'
  names anew. Here neither does.

This file imports nothing but moto: the tests' images have a copy of it in place of the program `moto_server`.
"""

from __future__ import annotations

import sys
import threading
import time  # noqa: TID251 - a server's
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

from flask import request
from moto import backends
from moto.core import responses
from moto.dynamodb.models import DynamoDBBackend
from moto.sqs import models as sqs_models
from moto.sqs.models import SQSBackend

LOOK_SECONDS: Final = 0.05
CHANGES: Final = (
    "send_message",
    "delete_message",
    "change_message_visibility",
    "purge_queue",
    "delete_queue",
)

lock = threading.RLock()
changed = threading.Condition(lock)
attempts: dict[Any, Any] = {}  # messages by attempt id; kept, since no test lasts long
models: Any = sqs_models
receive_message: Any = SQSBackend.receive_message
get_queue_attributes: Any = SQSBackend.get_queue_attributes


def clock() -> float:
    """Return the time in milliseconds."""
    return time.time() * 1000


def receive(self: Any, queue_name: str, count: int, wait: int, *args: Any, **kwargs: Any) -> Any:
    """Do as `SQSBackend.receive_message`, each look atomically."""
    until = time.monotonic() + wait
    attempt = (request.get_json(force=True, silent=True) or {}).get("ReceiveRequestAttemptId")
    while True:
        with lock:
            messages = attempts.get(attempt) or receive_message(self, queue_name, count, 0, *args, **kwargs)
            if attempt:
                attempts[attempt] = messages
            if messages or time.monotonic() >= until:
                return messages
            changed.wait(LOOK_SECONDS)


def count(*args: Any, **kwargs: Any) -> Any:
    """Do as `SQSBackend.get_queue_attributes`, while moto's clock stands still."""
    with lock:
        now = clock()
        models.unix_time_millis = lambda: now
        try:
            return get_queue_attributes(*args, **kwargs)
        finally:
            models.unix_time_millis = clock


def locked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with the lock held during each call."""

    @wraps(method)
    def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
        with lock:
            changed.notify_all()  # which go on when the lock is free
            return method(*args, **kwargs)

    return one_at_a_time


def mend() -> None:
    """Patch moto's classes in this process, which serves them. Idempotent."""
    backend: Any = SQSBackend
    if backend.receive_message is receive:
        return
    backend.receive_message = receive
    backend.get_queue_attributes = count
    for name in CHANGES:
        setattr(backend, name, locked(getattr(backend, name)))
    dynamodb: Any = DynamoDBBackend
    dynamodb.update_item = locked(dynamodb.update_item)
    models.unix_time_millis = clock
    models.camelcase_to_underscores = cache(models.camelcase_to_underscores)
    actions: Any = responses
    actions.method_names_from_class = cache(actions.method_names_from_class)
    services: Any = backends
    found = list(services.list_of_moto_modules())
    services.list_of_moto_modules = lambda: found


if __name__ == "__main__":
    from moto.server import main  # which imports all of moto

    mend()
    main(sys.argv[1:])
