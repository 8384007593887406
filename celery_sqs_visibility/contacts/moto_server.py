"""moto's SQS and DynamoDB, mended where workers see what AWS does not do.

Its threads hand out a message twice now and then, where polls overlap; here one works at a time.
Its long polls look for messages that become visible again once a second; here they look twenty times.
It counts visible messages and then hidden ones; here it counts both at one moment, since what came back
in between was neither. And it knows what a ReceiveRequestAttemptId is: the same messages, once more.
DynamoDB looks at the condition of an update and makes the update in one step; moto's threads do both at once.

This file needs moto alone: the tests' images have a copy of it in place of the program `moto_server`.
"""

from __future__ import annotations

import sys
import threading
import time  # noqa: TID251 - a server's
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from flask import request
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
attempts: dict[Any, Any] = {}  # what was received under each id; tests do not last long enough to forget
models: Any = sqs_models
clock: Callable[[], float] = models.unix_time_millis
receive_message: Any = SQSBackend.receive_message
get_queue_attributes: Any = SQSBackend.get_queue_attributes


def receive(self: Any, queue_name: str, count: int, wait: int, *args: Any, **kwargs: Any) -> Any:
    """As `SQSBackend.receive_message`; each look is one step."""
    until = time.monotonic() + wait
    attempt = (request.get_json(force=True, silent=True) or {}).get("ReceiveRequestAttemptId")
    while True:
        with lock:
            messages = attempts.get(attempt) or receive_message(self, queue_name, count, 0, *args, **kwargs)
            if attempt:
                attempts[attempt] = messages
        if messages or time.monotonic() >= until:
            return messages
        self.get_queue(queue_name).wait_for_messages(LOOK_SECONDS)


def count(*args: Any, **kwargs: Any) -> Any:
    """As `SQSBackend.get_queue_attributes`; its clock stands meanwhile."""
    with lock:
        now = clock()
        models.unix_time_millis = lambda: now
        try:
            return get_queue_attributes(*args, **kwargs)
        finally:
            models.unix_time_millis = clock


def locked(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, one call at a time."""

    @wraps(method)
    def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return method(*args, **kwargs)

    return one_at_a_time


def mend() -> None:
    """Change moto's classes in this process, which serves them; harmless if that was done."""
    backend: Any = SQSBackend
    if backend.receive_message is receive:
        return
    backend.receive_message = receive
    backend.get_queue_attributes = count
    for name in CHANGES:
        setattr(backend, name, locked(getattr(backend, name)))
    dynamodb: Any = DynamoDBBackend
    dynamodb.update_item = locked(dynamodb.update_item)


if __name__ == "__main__":
    from moto.server import main  # which imports all of moto

    mend()
    main(sys.argv[1:])
