"""Task messages for publishers without Celery: a Lambda, a Step Function, an EventBridge target.

Celery's protocol 2 in kombu's envelope, as plain JSON, which workers of both transports can read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kombu.utils.json import dumps

#: Namespace of the ids of tasks made from messages.
NAMESPACE: Final = uuid.UUID("6d3b1f0e-0f0f-5c55-9d0c-5d1c2a2e7b11")


def task_message(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    task_id: str | None = None,
) -> str:
    """The body, as JSON, of an SQS message that runs a task. Makes no request.

    Args:
        task: the task, or its name.
        args: its arguments, which must be JSON.
        kwargs: its keyword arguments, which must be JSON.
        task_id: its id; by default a new one.

    Raises:
        TypeError: the arguments can't be JSON.
    """
    return dumps(task_payload(task, args, kwargs or {}, task_id or str(uuid.uuid4())))


def task_id_for(message_id: str, record: int | None = None) -> str:
    """The id of a task made from a message that is not a task, the same for each delivery of the message.

    `record` is the index of a record, if the message has several and each one gets a run.
    """
    return str(uuid.uuid5(NAMESPACE, message_id if record is None else f"{message_id}/{record}"))


def task_payload(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str, queue: str = ""
) -> dict[str, Any]:
    """A task, given by name or object, in kombu's envelope (celery/app/amqp.py: `as_task_v2`)."""
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
