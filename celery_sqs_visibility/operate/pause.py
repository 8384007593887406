"""`celery -A proj sqs pause` and `resume`: workers stop polling a queue or running a task, and go on."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from celery_sqs_visibility.aws.kept_pauses import end_kept_pause, keep_pause
from celery_sqs_visibility.delivery.receive.pauses import LOOK_SECONDS
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError
from celery_sqs_visibility.operate.figures import UNIT_SECONDS, duration_text, usd_of
from celery_sqs_visibility.operate.invocation import (
    PASSING,
    CommandError,
    app_of,
    ask,
    controlled_broker_of,
    duration,
    errors_in,
    json_option,
    nobody_answered,
    say,
    show_json,
    timeout_option,
    with_retries,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport.control_exchanges import EX_NOPERM, EX_UNAVAILABLE

#: Requests for each check of a waiting message: it is received, sent as a copy and deleted, perhaps with nine
#: others.
REQUESTS_A_LOOK: Final = 3

_USD_A_DAY: Final = usd_of(1000 * UNIT_SECONDS["d"] / LOOK_SECONDS * REQUESTS_A_LOOK, "")

COST_OF_A_PAUSED_TASK: Final = (
    f"Its messages come back every {LOOK_SECONDS} s to be checked: 1,000 of them cost "
    f"USD {_USD_A_DAY / BATCH_ENTRIES:.2f} to {_USD_A_DAY:.2f} a day. Checks are not attempts."
)

F = TypeVar("F", bound=Callable[..., Any])


def _more_than_none(_ctx: click.Context, _param: click.Parameter, seconds: float | None) -> float | None:
    if seconds == 0:
        raise click.BadParameter("expected a duration of more than 0 s")
    return seconds


nodes_option: Callable[[F], F] = click.option(
    "-d",
    "--destination",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="Only this worker, such as celery@host; may be given several times. By default all.",
)


task_option: Callable[[F], F] = click.option(
    "--task", metavar="NAME", help="The messages of this task, in all queues, instead of a queue."
)


@click.command()
@click.argument("queue", required=False)
@task_option
@click.option(
    "--for",
    "seconds",
    type=duration,
    callback=_more_than_none,
    metavar="DURATION",
    help="End by itself after 90s, 10m, 1h30m. By default: never.",
)
@click.option("--keep", is_flag=True, help="Tag the queue, so that workers which start are paused, too.")
@nodes_option
@timeout_option
@json_option
@click.pass_context
def pause(
    ctx: click.Context,
    queue: str | None,
    task: str | None,
    seconds: float | None,
    nodes: tuple[str, ...],
    timeout: float,
    *,
    keep: bool,
    as_json: bool,
) -> None:
    """Stop workers from polling QUEUE, or from running one task.

    Tasks that run go on. Tasks that wait in a worker go back to the queue, for other workers or for later,
    which costs each an attempt. A worker that starts meanwhile is not paused unless you --keep the pause.

    With --task each message of the task waits as a copy in SQS, which costs no attempt, and is looked at once
    a minute. In a FIFO queue the worker holds it.
    """
    paused = _named(queue, task)
    if keep and (nodes or task):
        raise click.UsageError("--keep pauses a queue for all workers: leave out --task and --destination")
    app = app_of(ctx)
    with controlled_broker_of(app) as broker:
        if keep:  # first, because a worker that starts now gets either the tag or the command
            until = math.inf if seconds is None else SYSTEM_CLOCK.wall() + seconds
            with_retries(lambda: keep_pause(broker.queues.find(paused["queue"]), until), PASSING)
        kept = {"kept": keep} if queue else {}
        command = "sqs_pause_task" if task else "sqs_pause"
        answers = ask(app, command, timeout, nodes, **paused, seconds=seconds, **kept)
    _show(paused, answers, _paused, timeout, kept=keep, as_json=as_json)
    if as_json:
        return
    if task:
        say(COST_OF_A_PAUSED_TASK)
    others = "paused, too" if keep else "not paused: use --keep" if queue else "not paused"
    say(f"Workers that start from now on are {others}.")


@click.command()
@click.argument("queue", required=False)
@task_option
@nodes_option
@timeout_option
@json_option
@click.pass_context
def resume(
    ctx: click.Context,
    queue: str | None,
    task: str | None,
    nodes: tuple[str, ...],
    timeout: float,
    *,
    as_json: bool,
) -> None:
    """Let workers poll QUEUE, or run a task, again. No effect if it is not paused.

    Workers that start poll the queue, too, but with --destination a kept pause goes on for these.
    """
    paused = _named(queue, task)
    app, kept, denied = app_of(ctx), False, None
    with controlled_broker_of(app) as broker:
        try:
            if queue and not nodes:
                kept = with_retries(lambda: end_kept_pause(broker.queues.find(queue)), PASSING)
        except QueueDoesNotExistError:
            pass  # the workers' answers say which queues they consume
        except AccessDeniedError as error:
            denied = error
        command = "sqs_resume_task" if task else "sqs_resume"
        answers = ask(app, command, timeout, nodes, **paused)
    if answers or denied is None:
        _show(paused, answers, _resumed, timeout, kept=kept, as_json=as_json)
    if denied is not None:
        sentence = f"a pause of queue {queue!r} that was kept goes on for workers that start: {denied}"
        raise CommandError(sentence, EX_NOPERM)
    if kept and not as_json:
        say("Workers that start from now on are not paused.")


def _named(queue: str | None, task: str | None) -> dict[str, str]:
    """The queue or task, as an argument of the workers' commands."""
    if bool(queue) == bool(task):
        raise click.UsageError("name a queue, or a task with --task NAME")
    return {"queue": queue} if queue else {"task": task or ""}


def _refusal(paused: Mapping[str, str], answers: Mapping[str, Any]) -> str:
    (name,) = paused.values()
    if "task" in paused and all("task" in answer for answer in answers.values()):
        return f"no worker that answered has task {name!r}"
    queues = sorted({each for answer in answers.values() for each in answer.get("queues", ())})
    if not all(answer.get("queues") for answer in answers.values()):
        return "; ".join(errors_in(answers))
    (nearest,) = difflib.get_close_matches(name, queues, n=1, cutoff=0.0)
    return (
        f"no worker that answered consumes queue {name!r}; they consume "
        f"{', '.join(map(repr, queues))}. The nearest is {nearest!r}."
    )


def _show(
    paused: Mapping[str, str],
    answers: Mapping[str, Any],
    sentence: Callable[[Mapping[str, Any]], str],
    timeout: float,
    *,
    kept: bool,
    as_json: bool,
) -> None:
    """Print the answers of the workers that consume the queue, or have the task.

    Raises:
        CommandError: there are none, and no tag was changed, so nothing was done.
    """
    if not kept and not answers:
        raise CommandError(nobody_answered(timeout), EX_UNAVAILABLE)
    if not kept and all("error" in answer for answer in answers.values()):
        raise CommandError(_refusal(paused, answers))
    if as_json:
        of_queue = {"kept": kept} if "queue" in paused else {}
        show_json({**paused, **of_queue, "workers": answers})
        return
    for node, answer in answers.items():
        if "error" not in answer:
            say(f"{node}: {sentence(answer['ok'])}")
        elif not answer.keys() & {"queues", "task"}:  # otherwise the worker is not concerned
            say(f"{node}: not done: {answer['error']}")


def _paused(condition: Mapping[str, Any]) -> str:
    left, running = condition["seconds_left"], condition["running"]
    how_long = "until it is resumed" if left is None else f"for {duration_text(left)}"
    said = f"paused {how_long}; {running} running"
    if "held" in condition:
        said += f", {max(0, condition['held'] - running)} given back"
    return said


def _resumed(answer: Mapping[str, Any]) -> str:
    return "resumed" if answer["was_paused"] else "was not paused"
