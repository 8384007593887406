"""Messages of tasks for publishers without Celery: a Lambda, a Step Function, an EventBridge target.

Celery's protocol 2 in kombu's envelope, as plain JSON: workers of both transports read it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kombu.utils.json import dumps

#: Of the ids of tasks that are made of messages.
NAMESPACE: Final = uuid.UUID("6d3b1f0e-0f0f-5c55-9d0c-5d1c2a2e7b11")


def task_message(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    task_id: str | None = None,
) -> str:
    """The body of an SQS message that runs a task: JSON. No request is made.

    Args:
        task: its name, or the task.
        args: its arguments, which must be JSON.
        kwargs: its keyword arguments, likewise.
        task_id: a fresh one if it is `None`.

    Raises:
        TypeError: the arguments cannot be JSON.
    """
    return dumps(task_payload(task, args, kwargs or {}, task_id or str(uuid.uuid4())))


def task_id_for(message_id: str, record: int | None = None) -> str:
    """The id of the task that is made of a message which is no task: the same for every delivery of it.

    `record` is the index of a record, for messages that have several, and a run for each.
    """
    return str(uuid.uuid5(NAMESPACE, message_id if record is None else f"{message_id}/{record}"))


def task_payload(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str, queue: str = ""
) -> dict[str, Any]:
    """A task, or its name, as kombu's envelope has it (celery/app/amqp.py: `as_task_v2`)."""
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return {
        "body": dumps([list(args), dict(kwargs), embedded]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            "lang": "py",
            "task": getattr(task, "name", task),
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "retries": 0,
            "timelimit": [None, None],
        },
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": task_id,
            "priority": 0,
        },
    }
