"""moto's server, with a lock: its threads hand out a message twice now and then, where polls overlap.

Its long polls look for messages that become visible again once a second; here they look twenty times.
It counts visible messages and then hidden ones; here it counts both at one moment, since what came back
in between was neither. And it knows what a ReceiveRequestAttemptId is: the same messages, once more.
DynamoDB looks at the condition of an update and makes the update in one step; moto's threads do both at once.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from flask import request
from moto.dynamodb.models import DynamoDBBackend
from moto.server import main
from moto.sqs import models
from moto.sqs.models import SQSBackend

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 0.05
CHANGES = ("send_message", "delete_message", "change_message_visibility", "purge_queue", "delete_queue")

lock = threading.RLock()
attempts: dict[str, Any] = {}  # what was received under each id; tests do not last long enough to forget
clock = models.unix_time_millis
receive_message = SQSBackend.receive_message
get_queue_attributes = SQSBackend.get_queue_attributes


def receive(self: SQSBackend, queue_name: str, count: int, wait: int, *args: Any, **kwargs: Any) -> Any:
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
    @wraps(method)
    def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return method(*args, **kwargs)

    return one_at_a_time


if __name__ == "__main__":
    SQSBackend.receive_message = receive
    SQSBackend.get_queue_attributes = count
    for name in CHANGES:
        setattr(SQSBackend, name, locked(getattr(SQSBackend, name)))
    DynamoDBBackend.update_item = locked(DynamoDBBackend.update_item)
    main(sys.argv[1:])
