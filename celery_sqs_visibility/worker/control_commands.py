"""Commands among Celery's own (celery/worker/control.py: `Panel`): a worker's queues, pauses and messages.

A worker's bootstep imports this where there is remote control. Answers are JSON. Commands run on Celery's
main thread and make no request there: a thread gives back the messages that wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from celery.utils.log import get_logger
from celery.worker import state as worker_state
from celery.worker.control import control_command, inspect_command
from kombu.utils.json import dumps

from celery_sqs_visibility.contacts.worker import replace_handle_call
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.threads import snapshot, start_thread
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.batches import has_own_strategy
from celery_sqs_visibility.worker.drain import grace_period, time_of_runs
from celery_sqs_visibility.worker.held_messages import Moment, begun_at, described
from celery_sqs_visibility.worker.pool_patches import number_of_slots
from celery_sqs_visibility.worker.trail import TRAIL

logger = get_logger(__name__)

#: Messages of which an answer tells, about 500 bytes each; it counts all.
MAX_HELD: Final = 200


@control_command(args=[("queue", str), ("seconds", float)], signature="<queue> [seconds]")
def sqs_pause(
    state: Any, queue: str, seconds: float | None = None, *, kept: bool = False, **_: Any
) -> dict[str, Any]:
    """Poll a queue no more, and give back what waits; for good, or for some seconds."""
    context = _context(state)
    if refusal := _refusal(context, queue):
        return refusal
    before = _conditions(context)[queue]
    context.receiving.pauses.pause(queue, math.inf if seconds is None else float(seconds), kept=kept)
    consumers = _consumers(context)
    for each in consumers:
        each.notice_pause(queue)
    how_long = "until it is resumed" if seconds is None else f"for {float(seconds):g} s"
    others = "does not poll it either" if kept else "polls it"
    logger.info("queue %r is paused %s; a worker that starts meanwhile %s", queue, how_long, others)
    if start_thread(_give_back, f"sqs-pause-{queue}", consumers, queue) is None:
        return {
            "error": "no thread could be started that gives back waiting messages; the queue is paused all "
            "the same. Pause it again to give them back"
        }
    return {"ok": {**before, **_pause_of(context, queue)}}


@control_command(args=[("queue", str)], signature="<queue>")
def sqs_resume(state: Any, queue: str, **_: Any) -> dict[str, Any]:
    """Poll a paused queue again."""
    context = _context(state)
    if refusal := _refusal(context, queue):
        return refusal
    was_paused = context.receiving.pauses.get(queue) is not None
    context.receiving.pauses.resume(queue)
    for each in _consumers(context):
        each.notice_pause(queue)
    if was_paused:
        logger.info("queue %r is resumed", queue)
    return {"ok": {"was_paused": was_paused}}


@control_command(args=[("task", str), ("seconds", float)], signature="<task> [seconds]")
def sqs_pause_task(state: Any, task: str, seconds: float | None = None, **_: Any) -> dict[str, Any]:
    """Run a task no more, and let its messages wait; for good, or for some seconds."""
    known = state.app.tasks.get(task)
    if known is None:
        return {"error": f"has no task {task!r}", "task": task}
    if has_own_strategy(known):
        return {"error": f"task {task!r} collects its messages itself, and cannot be paused: pause its queue"}
    pauses = _context(state).receiving.paused_tasks
    pauses.pause(task, math.inf if seconds is None else float(seconds))
    how_long = "until it is resumed" if seconds is None else f"for {float(seconds):g} s"
    logger.info("task %r is paused %s; a worker that starts meanwhile runs it", task, how_long)
    running = sum(request.name == task for request in snapshot(worker_state.active_requests))
    return {"ok": {"seconds_left": seconds, "running": running}}


@control_command(args=[("task", str)], signature="<task>")
def sqs_resume_task(state: Any, task: str, **_: Any) -> dict[str, Any]:
    """Run a paused task again."""
    pauses = _context(state).receiving.paused_tasks
    if task not in state.app.tasks:
        return {"error": f"has no task {task!r}", "task": task}
    was_paused = pauses.get(task) is not None
    pauses.resume(task)
    if was_paused:
        logger.info("task %r is resumed", task)
    return {"ok": {"was_paused": was_paused}}


@inspect_command()
def sqs_queues(state: Any, **_: Any) -> dict[str, Any]:
    """Tell which queues are polled, what is paused, and how many messages are held and hidden."""
    module, waits = type(state.consumer.pool).__module__.rpartition(".")[2], _waits()
    return {
        "pool": "threads" if module == "thread" else module,  # its name on the command line
        "slots": number_of_slots(state.consumer),
        "busy": len(worker_state.active_requests),
        "queues": {
            queue: {**condition, "waited": waits.get(queue)}
            for queue, condition in _conditions(_context(state)).items()
        },
        "paused_tasks": _context(state).receiving.paused_tasks.all(),
    }


@inspect_command(args=[("task_id", str)], signature="[task_id]")
def sqs_held(state: Any, task_id: str | None = None, limit: int = MAX_HELD, **_: Any) -> dict[str, Any]:
    """Tell what runs and what waits here, the longest first; of one task also what happened to it before."""
    context = _context(state)
    consumers = _consumers(context)
    at = _moment(context, consumers)
    held = [each for each in _held(consumers) if task_id in {None, each.facts.task_id}]
    held.sort(key=partial(begun_at, at=at))
    limits = _time_limits() if state.consumer.pool.uses_semaphore else {}
    answer = {
        "messages": len(held),
        "held": [described(each, at, limits.get(each)) for each in held[:limit]],
        "runs_have": at.runs_have,
        "usual_run_seconds": at.usual,
    }
    return answer if task_id is None else {**answer, "history": TRAIL.of(task_id)}


def _held(consumers: list[QueueConsumer]) -> list[Delivery]:
    """What is held, and the runs whose messages were deleted when they began."""
    held = [each for one in consumers for each in one.held()]
    return [*held, *(each for each in _runs() if not each.held and each.acknowledged_early)]


def _moment(context: BrokerContext, consumers: list[QueueConsumer]) -> Moment:
    runs_have = time_of_runs(context.options.shutdown_timeout, grace_period()[0])
    usual = consumers[-1].capacity.usual_run_seconds if consumers else None
    return Moment(SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall(), runs_have, usual)


def _time_limits() -> dict[Delivery, float]:
    """The time limits of runs, in seconds."""
    limits = {}
    for request in snapshot(worker_state.active_requests):
        delivery = getattr(request, "delivery", None)
        if delivery is not None and (limit := request.time_limits[0] or request.task.time_limit):
            limits[delivery] = limit
    return limits


def _context(state: Any) -> BrokerContext:
    context: BrokerContext = state.consumer.conninfo.transport.context
    return context


def _consumers(context: BrokerContext) -> list[QueueConsumer]:
    """The worker's consumers, those of earlier connections too while a run of theirs goes on."""
    return snapshot(context.receiving.worker_queue_consumers)


def _consumed_queues(context: BrokerContext) -> list[str]:
    """Celery's names of the worker's queues, paused ones included, in order."""
    return sorted({name for each in _consumers(context) for name in each.consumed()})


def _refusal(context: BrokerContext, queue: str) -> dict[str, Any]:
    """The answer to a command about a queue that the worker does not consume; empty if it does."""
    queues = _consumed_queues(context)
    if queue in queues:
        return {}
    return {"error": f"consumes {', '.join(map(repr, queues))}, and not {queue!r}", "queues": queues}


def _conditions(context: BrokerContext) -> dict[str, dict[str, Any]]:
    """The state of each queue: its pause, and the counts of held messages, of hidden ones and of runs."""
    consumers, now = _consumers(context), SYSTEM_CLOCK.monotonic()
    held = Counter(each.facts.queue for one in consumers for each in one.held())
    hidden = {each.queue: each.hidden for one in consumers for each in one.polling_facts(now)}
    running = Counter(each.facts.queue for each in _runs())
    return {
        queue: {
            **_pause_of(context, queue),
            "held": held[queue],
            "hidden": hidden.get(queue, 0),
            "running": running[queue],
        }
        for queue in _consumed_queues(context)
    }


def _waits() -> dict[str, float]:
    """The longest wait in seconds of first attempts that run, since their ETA or sending, by queue."""
    now, wall, waits = SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall(), dict[str, float]()
    for each in _runs():
        if each.began is not None and each.facts.sent and each.facts.attempt == 1:
            due = each.facts.eta or each.facts.sent
            waited = round(max(0.0, wall - (now - each.began) - due), 1)
            waits[each.facts.queue] = max(waited, waits.get(each.facts.queue, 0.0))
    return waits


def _runs() -> list[Delivery]:
    requests = snapshot(worker_state.active_requests)
    return [each for each in (getattr(request, "delivery", None) for request in requests) if each is not None]


def _pause_of(context: BrokerContext, queue: str) -> dict[str, Any]:
    pause, left = context.receiving.pauses.get(queue), context.receiving.pauses.seconds_left(queue)
    return {
        "paused": left > 0,
        "seconds_left": round(left, 1) if 0 < left < math.inf else None,
        "kept": pause is not None and pause.kept,
    }


def _give_back(consumers: list[QueueConsumer], queue: str) -> None:
    """Give back the messages of a paused queue that have not begun. In a thread of its own."""
    released = [delivery for each in consumers for delivery in each.give_back_unstarted(queue)]
    if released:
        logger.info("paused queue %r: messages given back that had not begun: %s", queue, len(released))


def check_answers(node: Any) -> None:
    """Let a node answer with an error in place of an answer that is not JSON. Idempotent."""
    replace_handle_call(node, partial(_checked, node.handle))


def _checked(handle: Callable[[str, Any], Any], method: str, arguments: Any) -> Any:
    """The answer. kombu logs an exception of this function, and sends it like other errors of commands."""
    answer = handle(method, arguments)
    try:
        dumps(answer)
    except Exception as error:
        raise TypeError(f"the answer of the control command {method!r} is not JSON: {error}") from error
    return answer
