"""Remote control commands beside Celery's own (celery/worker/control.py: `Panel`), for queues and messages.

Imported by a worker's bootstep if remote control is on. Answers are JSON. Commands run on Celery's main
thread and make no request there: another thread gives back waiting messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
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
from celery_sqs_visibility.policy.health import BrakeFacts
from celery_sqs_visibility.policy.message_limits import truncated
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.batches import has_own_strategy
from celery_sqs_visibility.worker.drain import grace_period, time_of_runs
from celery_sqs_visibility.worker.held_messages import Moment, begun_at, described
from celery_sqs_visibility.worker.pool_patches import number_of_slots
from celery_sqs_visibility.worker.trail import MAX_TEXT, TRAIL

logger = get_logger(__name__)

#: How many messages an answer describes, at about 500 bytes each; it counts all of them.
MAX_HELD: Final = 200


@control_command(args=[("queue", str), ("seconds", float)], signature="<queue> [seconds]")
def sqs_pause(
    state: Any, queue: str, seconds: float | None = None, *, kept: bool = False, **_: Any
) -> dict[str, Any]:
    """Stop polling a queue and give back its waiting messages, for good or for some seconds."""
    context = _context(state)
    if refusal := _refusal(context, queue):
        return refusal
    before = _conditions(context)[queue]
    context.receiving.pauses.pause(queue, math.inf if seconds is None else float(seconds), kept=kept)
    context.receiving.notice_pause(queue)
    how_long = "until it is resumed" if seconds is None else f"for {float(seconds):g} s"
    others = "does not poll it either" if kept else "polls it"
    logger.info("queue %r is paused %s; a worker that starts meanwhile %s", queue, how_long, others)
    if start_thread(_give_back, f"sqs-pause-{queue}", _consumers(context), queue) is None:
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
    context.receiving.notice_pause(queue)
    if was_paused:
        logger.info("queue %r is resumed", queue)
    return {"ok": {"was_paused": was_paused}}


@control_command(args=[("task", str), ("seconds", float)], signature="<task> [seconds]")
def sqs_pause_task(state: Any, task: str, seconds: float | None = None, **_: Any) -> dict[str, Any]:
    """Stop running a task and let its messages wait, for good or for some seconds."""
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
    """Show which queues are polled, what is paused, and how many messages are held and hidden."""
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
        "brakes": [
            {**asdict(each), "error": truncated(each.error, MAX_TEXT)} for each in _brakes(_context(state))
        ],
    }


@inspect_command(args=[("task_id", str)], signature="[task_id]")
def sqs_held(state: Any, task_id: str | None = None, limit: int = MAX_HELD, **_: Any) -> dict[str, Any]:
    """Show running and waiting messages, the oldest first; for one task also what happened to it before."""
    context = _context(state)
    consumers, runs = _consumers(context), _runs()
    at = _moment(context, consumers)
    held = [each for one in consumers for each in one.held()]
    held += [each for each in runs if not each.held and each.acknowledged_early]
    held = [each for each in held if task_id in {None, each.facts.task_id}]
    held.sort(key=partial(begun_at, at=at))
    limits = runs if state.consumer.pool.uses_semaphore else {}
    answer = {
        "messages": len(held),
        "held": [described(each, at, _time_limit(limits.get(each))) for each in held[:limit]],
        "runs_have": at.runs_have,
        "usual_run_seconds": at.usual,
    }
    return answer if task_id is None else {**answer, "history": TRAIL.of(task_id)}


def _moment(context: BrokerContext, consumers: list[QueueConsumer]) -> Moment:
    runs_have = time_of_runs(context.options.shutdown_timeout, grace_period()[0])
    usual = consumers[-1].capacity.usual_run_seconds if consumers else None
    paused = context.receiving.paused_tasks.all()
    braked = {task: each.brake for each in _brakes(context) for task in each.tasks}
    return Moment(SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall(), runs_have, usual, paused, braked)


def _brakes(context: BrokerContext) -> list[BrakeFacts]:
    return [each for each in context.receiving.brakes() if each.stage != "off"]


def _time_limit(request: Any) -> Any:
    """The time limit of a run, in seconds; `None` without one."""
    return request and (request.time_limits[0] or request.task.time_limit)


def _context(state: Any) -> BrokerContext:
    context: BrokerContext = state.consumer.conninfo.transport.context
    return context


def _consumers(context: BrokerContext) -> list[QueueConsumer]:
    """The worker's consumers, including those of earlier connections whose runs go on."""
    return snapshot(context.receiving.worker_queue_consumers)


def _consumed_queues(context: BrokerContext) -> list[str]:
    """Celery's names of the worker's queues, including paused ones, sorted."""
    return sorted({name for each in _consumers(context) for name in each.consumed()})


def _refusal(context: BrokerContext, queue: str) -> dict[str, Any]:
    """The answer to a command about a queue that the worker does not consume; empty if it does."""
    queues = _consumed_queues(context)
    if queue in queues:
        return {}
    return {"error": f"consumes {', '.join(map(repr, queues))}, and not {queue!r}", "queues": queues}


def _conditions(context: BrokerContext) -> dict[str, dict[str, Any]]:
    """The state of each queue: its pause, and the numbers of held, hidden and running messages."""
    consumers, now = _consumers(context), SYSTEM_CLOCK.monotonic()
    held = Counter(each.facts.queue for one in consumers for each in one.held())
    hidden = {each.queue: each.hidden for one in consumers for each in one.polling_facts(now)}
    running = Counter(each.facts.queue for each in _runs())
    return {
        queue: {
            **_pause_of(context, queue),
            "rests": queue in context.receiving.pauses.rests,
            "held": held[queue],
            "hidden": hidden.get(queue, 0),
            "running": running[queue],
        }
        for queue in _consumed_queues(context)
    }


def _waits() -> dict[str, float]:
    """By queue, the longest time in seconds that a running first attempt had to wait."""
    now, wall, waits = SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall(), dict[str, float]()
    for each in _runs():
        if each.began is not None and each.facts.sent and each.facts.attempt == 1:
            due = each.facts.eta or each.facts.sent
            waited = round(max(0.0, wall - (now - each.began) - due), 1)
            waits[each.facts.queue] = max(waited, waits.get(each.facts.queue, 0.0))
    return waits


def _runs() -> dict[Delivery, Any]:
    """The running deliveries, with their requests."""
    requests = snapshot(worker_state.active_requests)
    return {each.delivery: each for each in requests if getattr(each, "delivery", None) is not None}


def _pause_of(context: BrokerContext, queue: str) -> dict[str, Any]:
    pause, left = context.receiving.pauses.get(queue), context.receiving.pauses.seconds_left(queue)
    return {
        "paused": left > 0,
        "seconds_left": round(left, 1) if 0 < left < math.inf else None,
        "kept": pause is not None and pause.kept,
    }


def _give_back(consumers: list[QueueConsumer], queue: str) -> None:
    """Give back the messages of a paused queue that have not started. In a thread of its own."""
    released = [delivery for each in consumers for delivery in each.give_back_unstarted(queue)]
    if released:
        logger.info("paused queue %r: messages given back that had not begun: %s", queue, len(released))


def check_answers(node: Any) -> None:
    """Let a node answer with an error instead of an answer that is not JSON. Idempotent."""
    replace_handle_call(node, partial(_checked, node.handle))


def _checked(handle: Callable[[str, Any], Any], method: str, arguments: Any) -> Any:
    """Return the answer. Raises TypeError if it is not JSON, which kombu logs and sends to the caller."""
    answer = handle(method, arguments)
    try:
        dumps(answer)
    except Exception as error:
        raise TypeError(f"the answer of the control command {method!r} is not JSON: {error}") from error
    return answer
