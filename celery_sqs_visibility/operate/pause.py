"""`celery -A proj sqs pause` and `resume`: workers stop polling a queue, and poll it again."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from celery import Celery

from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import (
    CONTROL_IS_OFF,
    CommandError,
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
    as_json: bool,
) -> None:
    """Stop workers from polling QUEUE.

    Tasks that run go on. Tasks that wait in a worker go back to the queue, for other workers or for later,
    which costs each an attempt. Workers that start meanwhile are not paused, and a worker that starts anew
    has forgotten it.
    """
    answers = _tell(app_of(ctx), "sqs_pause", queue, nodes, timeout, seconds=seconds)
    _show(queue, answers, _paused, as_json=as_json)
    if not as_json:
        say("Workers that start from now on are not paused.")


@click.command()
@click.argument("queue")
@nodes_option
@timeout_option
@json_option
@click.pass_context
def resume(ctx: click.Context, queue: str, nodes: tuple[str, ...], timeout: float, *, as_json: bool) -> None:
    """Let workers poll QUEUE again. Harmless where it is not paused."""
    answers = _tell(app_of(ctx), "sqs_resume", queue, nodes, timeout)
    _show(queue, answers, _resumed, as_json=as_json)


def _tell(
    app: Celery, command: str, queue: str, nodes: tuple[str, ...], timeout: float, **arguments: Any
) -> dict[str, Any]:
    """Send a command. Returns the answers of the workers, at least one of which consumes the queue."""
    with broker_of(app):
        if not is_controlled(app):
            raise UnavailableCommandError(CONTROL_IS_OFF)
        answers = ask(app, command, timeout, nodes, queue=queue, **arguments)
    if not answers:
        raise UnavailableCommandError(f"no worker answered within {timeout:g} s")
    if all("error" in answer for answer in answers.values()):
        raise CommandError(_refusal(queue, answers))
    return answers


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
    *,
    as_json: bool,
) -> None:
    if as_json:
        show_json({"queue": queue, "workers": answers})
        return
    for node, answer in answers.items():
        outcome = f"not done: {answer['error']}" if "error" in answer else sentence(answer["ok"])
        say(f"{node}: {outcome}")


def _paused(condition: Mapping[str, Any]) -> str:
    left, running = condition["seconds_left"], condition["running"]
    how_long = "until it is resumed" if left is None else f"for {duration_text(left)}"
    waiting = max(0, condition["held"] - running)
    return f"paused {how_long}; {running} running, {waiting} given back"


def _resumed(answer: Mapping[str, Any]) -> str:
    return "resumed" if answer["was_paused"] else "was not paused"
