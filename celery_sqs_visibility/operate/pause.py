"""`celery -A proj sqs pause` and `resume`: workers stop polling a queue, and poll it again."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from celery import Celery

from celery_sqs_visibility.aws.kept_pauses import end_kept_pause, keep_pause
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import (
    CONTROL_IS_OFF,
    PASSING,
    CommandError,
    NotPermittedError,
    UnavailableCommandError,
    app_of,
    ask,
    broker_of,
    duration,
    is_controlled,
    json_option,
    say,
    show_json,
    timeout_option,
    with_retries,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext

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


@click.command()
@click.argument("queue")
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
    queue: str,
    seconds: float | None,
    nodes: tuple[str, ...],
    timeout: float,
    *,
    keep: bool,
    as_json: bool,
) -> None:
    """Stop workers from polling QUEUE.

    Tasks that run go on. Tasks that wait in a worker go back to the queue, for other workers or for later,
    which costs each an attempt. A worker that starts meanwhile is not paused unless you --keep the pause.
    """
    if keep and nodes:
        raise click.UsageError("--keep pauses all workers: leave out --destination")
    app = app_of(ctx)
    with _controlled(app) as broker:
        if keep:  # first: a worker that starts now reads the tag, or gets the command
            until = math.inf if seconds is None else SYSTEM_CLOCK.wall() + seconds
            with_retries(lambda: keep_pause(broker.queues.find(queue), until), PASSING)
        answers = ask(app, "sqs_pause", timeout, nodes, queue=queue, seconds=seconds, kept=keep)
    _show(queue, answers, _paused, timeout, kept=keep, as_json=as_json)
    if not as_json:
        say(f"Workers that start from now on are {'paused, too' if keep else 'not paused: use --keep'}.")


@click.command()
@click.argument("queue")
@nodes_option
@timeout_option
@json_option
@click.pass_context
def resume(ctx: click.Context, queue: str, nodes: tuple[str, ...], timeout: float, *, as_json: bool) -> None:
    """Let workers poll QUEUE again, also those that start. Harmless where it is not paused.

    With --destination a kept pause goes on for workers that start.
    """
    app, kept, denied = app_of(ctx), False, None
    with _controlled(app) as broker:
        try:
            if not nodes:
                kept = with_retries(lambda: end_kept_pause(broker.queues.find(queue)), PASSING)
        except QueueDoesNotExistError:
            pass  # the workers' answers name those that they consume
        except AccessDeniedError as error:
            denied = error
        answers = ask(app, "sqs_resume", timeout, nodes, queue=queue)
    if answers or denied is None:
        _show(queue, answers, _resumed, timeout, kept=kept, as_json=as_json)
    if denied is not None:
        sentence = f"a pause of queue {queue!r} that was kept goes on for workers that start: {denied}"
        raise NotPermittedError(sentence)
    if kept and not as_json:
        say("Workers that start from now on are not paused.")


@contextmanager
def _controlled(app: Celery) -> Iterator[BrokerContext]:
    with broker_of(app) as broker:
        if not is_controlled(app):
            raise UnavailableCommandError(CONTROL_IS_OFF)
        yield broker


def _refusal(queue: str, answers: Mapping[str, Any]) -> str:
    queues = sorted({name for answer in answers.values() for name in answer.get("queues", ())})
    if not all(answer.get("queues") for answer in answers.values()):
        return "; ".join(f"{node}: {answer['error']}" for node, answer in answers.items())
    (nearest,) = difflib.get_close_matches(queue, queues, n=1, cutoff=0.0)
    return (
        f"no worker that answered consumes queue {queue!r}; they consume {', '.join(map(repr, queues))}. "
        f"The nearest is {nearest!r}."
    )


def _show(
    queue: str,
    answers: Mapping[str, Any],
    sentence: Callable[[Mapping[str, Any]], str],
    timeout: float,
    *,
    kept: bool,
    as_json: bool,
) -> None:
    """Print the answers of the workers that consume the queue.

    Raises:
        CommandError: there are none, and no tag was changed, so nothing was done.
    """
    if not kept and not answers:
        raise UnavailableCommandError(f"no worker answered within {timeout:g} s")
    if not kept and all("error" in answer for answer in answers.values()):
        raise CommandError(_refusal(queue, answers))
    if as_json:
        show_json({"queue": queue, "kept": kept, "workers": answers})
        return
    for node, answer in answers.items():
        if "error" not in answer:
            say(f"{node}: {sentence(answer['ok'])}")
        elif "queues" not in answer:  # else it does not consume the queue
            say(f"{node}: not done: {answer['error']}")


def _paused(condition: Mapping[str, Any]) -> str:
    left, running = condition["seconds_left"], condition["running"]
    how_long = "until it is resumed" if left is None else f"for {duration_text(left)}"
    waiting = max(0, condition["held"] - running)
    return f"paused {how_long}; {running} running, {waiting} given back"


def _resumed(answer: Mapping[str, Any]) -> str:
    return "resumed" if answer["was_paused"] else "was not paused"
