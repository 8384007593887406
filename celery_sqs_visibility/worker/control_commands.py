"""Commands of ours among Celery's own (celery/worker/control.py: `Panel`).

A worker's bootstep imports this where there is remote control. Answers are JSON; the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from celery.worker import state as worker_state
from celery.worker.control import control_command, inspect_command
from kombu.utils.json import dumps

from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker import pausing
from celery_sqs_visibility.worker.pool_patches import slots_of

#: The names by which pools are asked for, where they are not those of Celery's modules.
POOLS: Final = {"thread": "threads"}


@control_command(args=[("queue", str), ("seconds", float)], signature="<queue> [seconds]")
def sqs_pause(state: Any, queue: str, seconds: float | None = None, **_: Any) -> dict[str, Any]:
    """Poll a queue no more, and give back what waits; for good, or for some seconds."""
    context = _context(state)
    try:
        condition = pausing.pause(context, queue, pausing.FOR_EVER if seconds is None else float(seconds))
    except pausing.QueueNotConsumedError as error:
        return _refusal(context, error)
    except pausing.NothingGivenBackError as error:
        return {"error": str(error)}
    return {"ok": condition}


@control_command(args=[("queue", str)], signature="<queue>")
def sqs_resume(state: Any, queue: str, **_: Any) -> dict[str, Any]:
    """Poll a paused queue again."""
    context = _context(state)
    try:
        was_paused = pausing.resume(context, queue)
    except pausing.QueueNotConsumedError as error:
        return _refusal(context, error)
    return {"ok": {"was_paused": was_paused}}


@inspect_command()
def sqs_queues(state: Any, **_: Any) -> dict[str, Any]:
    """Tell which queues are polled, which are paused, and what is held of each."""
    module = type(state.consumer.pool).__module__.rpartition(".")[2]
    return {
        "pool": POOLS.get(module, module),
        "slots": slots_of(state.consumer).number,
        "busy": len(worker_state.active_requests),
        "queues": pausing.conditions(_context(state)),
    }


def have_answers_checked(node: Any) -> None:
    """Have a command whose answer is not JSON answer with an error. Harmless if done before.

    kombu encodes an answer where it catches nothing: the caller would wait in vain (kombu/pidbox.py:
    `Node.dispatch`).
    """
    node.handle_call = partial(_checked, node.handle)


def _checked(handle: Callable[[str, Any], Any], method: str, arguments: Any) -> Any:
    """The answer; kombu logs what is raised here, and sends it as Celery does other errors of commands."""
    answer = handle(method, arguments)
    try:
        dumps(answer)
    except Exception as error:
        raise TypeError(f"the answer of the control command {method!r} is not JSON: {error}") from error
    return answer


def _context(state: Any) -> BrokerContext:
    context: BrokerContext = state.consumer.conninfo.transport.context
    return context


def _refusal(context: BrokerContext, error: Exception) -> dict[str, Any]:
    return {"error": str(error), "queues": pausing.consumed_queues(context)}
