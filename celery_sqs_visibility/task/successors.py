"""Messages that a run publishes in place of its own. In the pool's child.

`self.visibility.continue_later()` continues a task in a new message, with another 12 hours. To Celery it is a
published retry (celery/app/task.py: `Task.retry`): it has the same task id, callbacks, errbacks, chain and
chord, so whatever follows the task follows its last part.

A task's `apply_async` may be the user's own, and return without publishing: it may publish after the commit
of a transaction, or return the result of an equal task. So the only reliable sign is Celery's signal, which
is sent after each publication, to any broker and in any thread (celery/app/amqp.py: `send_task_message`). A
block of `publish_batch` raises an error at its end if it could not send the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from celery import signals
from celery.exceptions import Retry

from celery_sqs_visibility.task.context import (
    LIMIT_HEADER,
    DeliveryContext,
    is_delivery,
    message_group,
    own_queue,
)
from celery_sqs_visibility.task.stored_state import store_retry

#: The runs that await a successor: by id of the request, the request, and the header and value to look for.
_awaiting: dict[int, tuple[DeliveryContext, str, str | None]] = {}


def await_successor(request: DeliveryContext, *, by_root: bool = False) -> None:
    """Track in `request.visibility_successor` whether a successor is published, until `end`.

    With `by_root`, the successor may be several messages, with other task ids but the run's root. Any thread.
    """
    value = request.root_id if by_root else request.id
    request.visibility_successor = bool(request.visibility_successor)
    _awaiting[id(request)] = (request, "root_id" if by_root else "id", value)
    # Connected late, because a receiver slows down every publication.
    signals.after_task_publish.connect(_note, weak=False)


def end(request: DeliveryContext) -> None:
    """Stop awaiting a successor."""
    _awaiting.pop(id(request), None)


def _note(headers: dict[str, Any], body: Any, **_: Any) -> None:
    """Note a publication. In the thread that publishes."""
    fields = headers if "id" in headers else body  # in Celery's protocol 1, which has no roots
    for request, name, value in tuple(_awaiting.values()):
        if value is None or fields.get(name, value) == value:
            request.visibility_successor = True


class Continuation(Retry):
    """The task continues in another message, which was sent; this one must be deleted."""


def publish_continuation(task: Any, changes: dict[str, Any]) -> Continuation:
    """Publish the task again with changed arguments. Returns the exception for its run to raise.

    Raises:
        Exception: it could not be sent; on SQS a `Retry`, so the present message comes back.
    """
    request = task.request
    if request.called_directly:
        return Continuation("the task is to be continued, and was called directly")
    args, kwargs = changed_arguments(inspect.signature(task.run), request.args, request.kwargs, changes)
    signature = task.signature_from_request(request, args, kwargs, **_options(task, request))
    if not request.is_eager:
        prepare_for_successor(task)
        _publish(task, signature)
    told = "its message is followed by another, with which it continues"
    return Continuation(told, is_eager=request.is_eager, sig=signature)


def prepare_for_successor(task: Any, exc: Any = None) -> None:
    """Store RETRY and then free the key, before the task is published again, because it may start at once.

    A duplicate that waits for the key has the same task id, and may start as soon as the key is free.
    """
    if is_delivery(task):
        store_retry(task, task.request, exc)
    free_key(task.request)


def free_key(request: DeliveryContext) -> None:
    """Free the key of an exclusive task before its successor is sent."""
    if request.visibility_run is not None:  # otherwise the successor would wait for the end of the lease
        request.visibility_run.end(0, succeeded=False)


def _options(task: Any, request: DeliveryContext) -> dict[str, Any]:
    """Options that Celery's `signature_from_request` leaves out. Attempts and their limit start anew."""
    headers = request.as_execution_options()["headers"] or {}
    return {
        "retries": 0,
        "headers": {name: value for name, value in headers.items() if name != LIMIT_HEADER},
        "ignore_result": bool(request.ignore_result or task.ignore_result),
        **message_group(request),
        **own_queue(request),
    }


def _publish(task: Any, signature: Any) -> None:
    try:
        signature.apply_async()
    except Exception as exc:
        # An error of Celery's own, for which no `autoretry_for` was written.
        retry = task.retry_after_error_outside(task.request, exc) if is_delivery(task) else None
        if retry is None:
            raise
        raise retry from exc


def changed_arguments(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Change some arguments of a call; each stays positional or a keyword."""
    changed, left = list(args), dict(changes)
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    for position, parameter in enumerate(positional[: len(changed)]):
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and parameter.name in left:
            changed[position] = left.pop(parameter.name)
    return tuple(changed), {**kwargs, **left}
