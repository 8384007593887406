"""Whether the message that a run publishes in its own one's place has left this process. In the pool's child.

A task's `apply_async` may be the user's own, and return without having published: it publishes after the
commit of a transaction, or returns the result of an equal task. So only Celery's signal tells, which is sent
after each publication, to any broker and in any thread (celery/app/amqp.py: `send_task_message`). A block of
`publish_batch` raises an error at its end if it could not send the message.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from celery_sqs_visibility.task.context import DeliveryContext

#: The runs that await a successor: the request, with the header that names it and that header's value.
_awaiting: dict[int, tuple[DeliveryContext, str, str | None]] = {}


def await_successor(request: DeliveryContext, *, by_root: bool = False) -> None:
    """Note the successor of a run, from now on until `end`, in `request.visibility_successor`.

    `by_root`: it may be several messages with other task ids, which have the run's root. Any thread.
    """
    value = request.root_id if by_root else request.id
    request.visibility_successor = bool(request.visibility_successor)
    _awaiting[id(request)] = (request, "root_id" if by_root else "id", value)
    # Not before there is need: a receiver costs every publication. Connected once, it stays.
    signals.after_task_publish.connect(_note, weak=False)


def end(request: DeliveryContext) -> None:
    """Await no successor any more."""
    _awaiting.pop(id(request), None)


def _note(headers: dict[str, Any], body: Any, **_: Any) -> None:
    """A message has left. The thread that publishes."""
    fields = headers if "id" in headers else body  # in Celery's protocol 1, which has no roots
    for request, name, value in tuple(_awaiting.values()):
        if value is None or fields.get(name, value) == value:
            request.visibility_successor = True
