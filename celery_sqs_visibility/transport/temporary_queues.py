"""Temporary queues, which AMQP would delete by itself: those of rpc:// results and of `Broadcast`s.

SQS has no queues that expire. Instead their messages expire, and a queue is deleted when its consumer ends,
or, if it is a client's own for rpc:// results, when its process exits.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from celery_sqs_visibility.aws.queues import Queue, Queues
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.policy.queue_names import RETENTION
from celery_sqs_visibility.policy.quotas import MIN_RETENTION_SECONDS, RETENTION_SECONDS

logger = logging.getLogger(__name__)

STAYS: Final = (
    "created the temporary queue %r, and SQS has no queues that expire: it is deleted when its consumer in "
    "this process ends, or a client's process exits, but stays if that is killed. result_backend='rpc://' "
    "makes such a queue for each thread that publishes: use another result backend, or delete the queues "
    "that stay. (Said once.)"
)

#: How long an exiting process waits for the deletion of its clients' queues.
END_CLIENTS_SECONDS: Final = 2.0

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: The name that kombu gives the queue of a `Broadcast`, unless the user does (kombu/common.py).
_BROADCAST: Final = re.compile(rf".+\.{_UUID.pattern}")


class TemporaryQueues:
    """The temporary queues that this process has created. Any thread."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._declared: dict[str, Mapping[str, str]] = {}
        self._created: set[str] = set()
        self._logged = False
        self._pid: int | None = None  # of the process at whose exit clients' queues are deleted

    def declare(self, name: str, attributes: Mapping[str, str]) -> None:
        """Leave the creation of a `Broadcast` queue to `for_consumer`: publishers need no queue."""
        self._declared[name] = attributes

    def for_consumer(self, name: str) -> Queue:
        """Return the queue, temporary or not, created if necessary."""
        attributes = self._declared.get(name)
        return (
            self._queues.find_or_create(name) if attributes is None else self.find_or_create(name, attributes)
        )

    def of_broadcasts(self) -> list[str]:
        """Return the names of the queues of `Broadcast`s that this process created."""
        return [name for name in self._created if is_of_a_broadcast(name)]

    def find_or_create(self, name: str, attributes: Mapping[str, str]) -> Queue:
        """Find or create the queue. If it is created, log and remember that."""
        try:
            return self._queues.find(name)
        except QueueDoesNotExistError:
            queue = self._queues.find_or_create(name, attributes)
        self._created.add(name)
        if _UUID.fullmatch(name) and self._pid is None:
            self._pid = os.getpid()
            atexit.register(self.end_clients)
        if not self._logged and not is_of_a_broadcast(name):
            self._logged = True
            logger.warning(STAYS, name)
        return queue

    def end_clients(self) -> None:
        """Delete the queues of clients, which nobody else reads, at exit. Waits up to 2 s."""
        atexit.unregister(self.end_clients)
        names = [name for name in self._created if _UUID.fullmatch(name)]
        if self._pid != os.getpid() or not names:
            return
        deleting = start_thread(self._delete_all, "sqs-end-clients", names)
        if deleting is not None:
            deleting.join(END_CLIENTS_SECONDS)

    def _delete_all(self, names: list[str]) -> None:
        for name in names:
            self.delete(name)

    def created(self, name: str) -> bool:
        """Returns whether this process created the queue."""
        return name in self._created

    def delete(self, name: str) -> None:
        """Delete a queue that this process created, after its consumer has ended. Errors are logged."""
        self._created.discard(name)
        try:
            queue = self._queues.find(name)
            queue.sqs.delete_queue(queue.url)
        except SQSError as error:
            logger.warning("cannot delete the temporary queue %r, which stays: %s", name, error)
        self._queues.forget(name)


def temporary(name: str, *, auto_delete: bool, arguments: Mapping[str, Any] | None) -> dict[str, str] | None:
    """CreateQueue's attributes for a queue that is declared as temporary; `None` for any other.

    A temporary queue is auto_delete, and either has an expiry or a client's UUID as its name. Other consumers
    may use a queue that is only auto_delete: AMQP would not delete it before the last of them ends.
    """
    if not auto_delete:
        return None
    milliseconds = (arguments or {}).get("x-expires")
    if milliseconds is None:
        return {} if _UUID.fullmatch(name) or is_of_a_broadcast(name) else None
    seconds = min(max(milliseconds // 1000, MIN_RETENTION_SECONDS), RETENTION_SECONDS)
    return {RETENTION: str(seconds)}


def is_of_a_broadcast(name: str) -> bool:
    """Returns whether the name is one that kombu generates for the queue of a `Broadcast`."""
    return _BROADCAST.fullmatch(name) is not None


def is_reply(message: Mapping[str, Any], exchange: str, queue: str) -> bool:
    """Returns whether the message is a result for a client with a queue of its own, not a task."""
    return (
        not exchange
        and "task" not in (message.get("headers") or {})
        and bool(message["properties"].get("correlation_id"))
        and _UUID.fullmatch(queue) is not None
    )
