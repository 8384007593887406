"""`celery -A proj sqs message`: the body of an SQS message that runs a task, for pasting."""

from __future__ import annotations

import base64
import difflib
import json
import uuid
from typing import Any

import click
from celery import Celery

from celery_sqs_visibility.operate.invocation import (
    CommandError,
    app_of,
    broker_of,
    duration,
    json_option,
    say,
    show_json,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX, sqs_name
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS
from celery_sqs_visibility.transport.codec import with_eta
from celery_sqs_visibility.transport.encoding import DEFAULT_GROUP
from celery_sqs_visibility.transport.routing import queue_of_task
from celery_sqs_visibility.transport.task_message import task_payload


@click.command(short_help="Print the body of an SQS message that runs a task.")
@click.argument("task")
@click.option("--args", "args_text", metavar="JSON", default="[]", help="Arguments: a JSON list.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", default="{}", help="Keyword arguments: an object.")
@click.option("--countdown", type=duration, help="Run it after this time at the earliest: 90s, 10m, 2h.")
@click.option("--queue", help="Celery's name of the queue; otherwise the task's own.")
@click.option("--base64", "in_base64", is_flag=True, help="Encode the body, as Celery's producers do.")
@json_option
@click.pass_context
def message(
    ctx: click.Context,
    task: str,
    args_text: str,
    kwargs_text: str,
    *,
    countdown: float | None,
    queue: str | None,
    in_base64: bool,
    as_json: bool,
) -> None:
    """Print the body of an SQS message that runs TASK, to paste into the console of SQS.

    With --json, all that SendMessage takes but the queue's URL: aws sqs send-message --region REGION
    --queue-url URL --cli-input-json "$(celery -A proj sqs message TASK --json)". Nothing is sent.
    """
    app = app_of(ctx)
    args, kwargs = _parsed("--args", args_text, list), _parsed("--kwargs", kwargs_text, dict)
    _check_call(app, task, args, kwargs)
    with broker_of(app) as context:
        prefix = context.options.queue_name_prefix
    queue = queue or queue_of_task(app, app.tasks[task])
    body = _body(task, args, kwargs, queue, countdown)
    request = {
        "MessageBody": base64.b64encode(body.encode()).decode() if in_base64 else body,
        **_parameters(queue, countdown),
    }
    if as_json:
        show_json(request)
        return
    say(request.pop("MessageBody"))
    beside = "".join(f", {name} {value}" for name, value in request.items())
    say(f"For queue {sqs_name(queue, prefix)!r} at SQS{beside}.", err=True)


def _parsed(option: str, text: str, kind: type) -> Any:
    noun, example = ("list", '[1, "two"]') if kind is list else ("object", '{"key": "value"}')
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} should be a JSON {noun}, such as '{example}': {error}") from None
    if not isinstance(value, kind):
        raise click.UsageError(f"{option} should be a JSON {noun}, such as '{example}', got {text}")
    return value


def _check_call(app: Celery, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse a call that `delay()` would refuse.

    Raises:
        CommandError: there is no such task, or it takes other arguments.
    """
    task = app.tasks.get(name)
    if task is None:
        near = difflib.get_close_matches(name, list(app.tasks), n=1, cutoff=0.0)
        raise CommandError(f"the app has no task {name!r}: did you mean {near[0]!r}?")
    if task.typing and (check := getattr(task, "__header__", None)) is not None:
        try:
            check(*args, **kwargs)
        except TypeError as error:
            raise CommandError(f"{name} does not take these arguments: {error}") from None


def _body(name: str, args: list[Any], kwargs: dict[str, Any], queue: str, countdown: float | None) -> str:
    payload = task_payload(name, args, kwargs, str(uuid.uuid4()), queue)
    if countdown:
        payload["headers"] = with_eta(payload["headers"], SYSTEM_CLOCK.wall() + countdown, 0)
    return json.dumps(payload)


def _parameters(queue: str, countdown: float | None) -> dict[str, Any]:
    """Parameters of SendMessage besides the body. If the delay is too short, a worker waits for the ETA."""
    if queue.endswith(FIFO_SUFFIX):
        return {"MessageGroupId": DEFAULT_GROUP, "MessageDeduplicationId": str(uuid.uuid4())}
    return {"DelaySeconds": min(int(countdown), DELAY_SECONDS)} if countdown else {}
