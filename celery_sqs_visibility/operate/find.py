"""`celery -A proj sqs find`: where a task is, when it runs again, and what happened to it.

Nobody can look into an SQS queue, so the answer is assembled from everyone who had the message. It names the
sources that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

import click
from celery import Celery, states

from celery_sqs_visibility import events
from celery_sqs_visibility.aws.cloudwatch import CloudWatchLogs
from celery_sqs_visibility.delivery.event_log import MESSAGE_OF
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.app_queues import queue_names
from celery_sqs_visibility.operate.dead_letters.letter import Selection
from celery_sqs_visibility.operate.dead_letters.session import find_place, session_of
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.held import lease_left, state_text
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    app_of,
    ask_or_say,
    broker_of,
    errors_in,
    json_option,
    log_group_option,
    say,
    show_json,
    since_option,
    timeout_option,
)
from celery_sqs_visibility.operate.task_history import event_text, merged, of_answers, of_lines
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.message_limits import truncated
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: Characters of a result that are shown.
MAX_RESULT: Final = 300

#: Why a message is hidden, by the event that says so.
WAITS: Final = {
    MESSAGE_OF[events.Hidden]: "for its retry",
    MESSAGE_OF[events.Parked]: "until it may run",
    MESSAGE_OF[events.Renewed]: "until it may run",
}

#: Events after which a worker has the message.
BEGINNINGS: Final = frozenset({MESSAGE_OF[events.Received], MESSAGE_OF[events.Started]})

#: Where a task is after other events.
AFTER: Final = {
    MESSAGE_OF[events.DeadLettered]: "a dead letter for {ago}: {why}",
    MESSAGE_OF[events.Deleted]: "finished {ago} ago on {node}",
    MESSAGE_OF[events.Finished]: "finished {ago} ago on {node}",
    MESSAGE_OF[events.Skipped]: "skipped {ago} ago: {why}",
    MESSAGE_OF[events.Released]: "given back {ago} ago by {node}: it waits in SQS, or has succeeded since",
    MESSAGE_OF[events.Failed]: "failed {ago} ago: {why}",
}


@dataclass
class Found:
    """What is known of a task.

    Attributes:
        workers: the nodes that answered; `None` if they were not asked.
        held: the messages that they hold, each with its `worker`.
        history: its events, oldest first.
        letters: its dead letters; `None` if not searched.
        result: what the result backend has: `status`, `result`, `date_done`.
        unknown: sentences about sources that are missing.
    """

    task_id: str
    workers: list[str] | None = None
    held: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] | None = None
    result: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether any source knows the task. A result backend says PENDING if it does not."""
        known = self.result.get("status") not in {None, states.PENDING}
        return bool(self.held or self.history or self.letters) or known


@click.command()
@click.argument("task_id")
@click.option(
    "--dead-letters",
    "look",
    is_flag=True,
    help="Look for it in the dead-letter queues, too: receives and gives back what is there.",
)
@click.option(
    "--logs", type=click.File(errors="replace"), help="A file of JSON log lines of workers; - is stdin."
)
@log_group_option
@since_option
@timeout_option
@json_option
@click.pass_context
def find(
    ctx: click.Context,
    task_id: str,
    *,
    look: bool,
    logs: IO[str] | None,
    log_group: str | None,
    since: float,
    timeout: float,
    as_json: bool,
) -> None:
    """Show where the task TASK_ID is, when it runs again, and what happened to it before.

    Asks the workers, the result backend and, if told to, dead-letter queues and JSON logs. Workers remember
    the last events of tasks that did not simply succeed; logs also cover workers that are gone.

    Exit status: 0 it is known; 1 no source knows it.
    """
    app, found = app_of(ctx), Found(task_id)
    with broker_of(app) as context:
        told = [
            _ask_workers(app, found, timeout),
            [] if logs is None else of_lines(logs, task_id),
            _read_log_group(context, found, log_group, since) if log_group else [],
        ]
        found.history = merged(*told)
        _ask_backend(app, found)
        if look:
            _look_for_letters(app, context, found)
    if as_json:
        show_json({"verdict": verdict(found, SYSTEM_CLOCK.wall()), **vars(found)})
    else:
        _show(found)
    ctx.exit(0 if found.is_known else 1)


def _ask_workers(app: Celery, found: Found, timeout: float) -> list[dict[str, Any]]:
    """Ask the workers. Returns the events that they remember."""
    answers, missing = ask_or_say(app, "sqs_held", timeout, task_id=found.task_id)
    if answers is None:
        found.unknown.append(missing)
        return []
    found.workers = [node for node, answer in answers.items() if "held" in answer]
    found.unknown += errors_in(answers)
    found.held = [{"worker": node, **each} for node in found.workers for each in answers[node]["held"]]
    return of_answers(answers)


def _ask_backend(app: Celery, found: Found) -> None:
    if not app.conf.result_backend:
        found.unknown.append("there is no result backend, which would know the end of a task")
        return
    try:
        meta = app.backend.get_task_meta(found.task_id)
    except Exception as error:  # noqa: BLE001 - the backend's own
        found.unknown.append(f"the result backend does not answer: {error}")
        return
    told = {name: meta.get(name) for name in ("status", "result", "date_done")}
    told["result"] = None if told["result"] is None else truncated(str(told["result"]), MAX_RESULT)
    found.result = {name: value for name, value in told.items() if value is not None}


def _read_log_group(context: BrokerContext, found: Found, group: str, since: float) -> list[dict[str, Any]]:
    now = SYSTEM_CLOCK.wall()
    try:
        lines = CloudWatchLogs(context.client_settings).lines_with(found.task_id, group, now - since, now)
    except SQSError as error:
        found.unknown.append(f"log group {group!r} cannot be searched: {error}")
        return []
    return of_lines(lines, found.task_id)


def _look_for_letters(app: Celery, context: BrokerContext, found: Found) -> None:
    found.letters, seen = [], set()
    for name in queue_names(app, context.options):
        try:
            place = find_place(context, name, None)
            if place.letters.url in seen:
                continue
            seen.add(place.letters.url)
            with session_of(place, Selection([found.task_id]), None) as session:
                found.letters += [
                    {"dead_letter_queue": place.letters.name, **letter.summary(session.now())}
                    for letter in session.letters()
                ]
        except (CommandError, SQSError) as error:
            found.unknown.append(f"dead letters of queue {name!r}: {error}")


def verdict(found: Found, now: float) -> str:
    """Where the task is, in a sentence. `now` is in seconds since the epoch."""
    if found.held:
        return "; ".join(_held_text(each, now) for each in found.held)
    if found.letters:
        letter = found.letters[0]
        why, age = letter["exception"] or letter["reason"], duration_text(letter["age_seconds"])
        return f"a dead letter in {letter['dead_letter_queue']!r} for {age}: {why}"
    status, done = found.result.get("status"), found.result.get("date_done")
    if status in states.READY_STATES:
        return f"{status} in the result backend" + (f" since {done}" if done else "")
    if found.history:
        return _after(found.history[-1], found.workers or (), now)
    if status not in {None, states.PENDING}:
        return f"last heard of as {status}: it waits in SQS, or a worker that does not answer has it"
    return "; ".join([*_nobody_has_it(found), "it waits in SQS, or has succeeded, or never was"])


def _nobody_has_it(found: Found) -> Iterator[str]:
    if found.workers:
        one = len(found.workers) == 1
        yield f"not held by {'the only worker' if one else f'any of {len(found.workers)} workers'}"
    elif found.workers is not None:
        yield "no worker answered"
    yield "no dead letter was looked for" if found.letters is None else "no dead letter"


def _held_text(message: Mapping[str, Any], now: float) -> str:
    since = message["began"] or message["received"]
    parts = [f"{state_text(message)} on {message['worker']}"]
    if since:
        parts.append(f"for {duration_text(max(0.0, now - since))}")
    text = f"{' '.join(parts)}, attempt {message['attempt'] or 1}"
    left = lease_left(message, now)
    if left is None:
        return f"{text}; its message was deleted when the run began"
    if message["lost"]:
        return f"{text}; its message is lost: another worker may run it"
    return f"{text}; hidden for {duration_text(round(left))} more, and extended"


def _after(event: Mapping[str, Any], workers: Sequence[str], now: float) -> str:
    """Where a message that no worker holds is, by its last known event."""
    name, node = event["message"], event.get("node")
    ago = duration_text(max(0.0, now - event["at"]))
    if name in WAITS:
        return _waits(WAITS[name], event["at"] + event["seconds"] - now)
    if name in BEGINNINGS and node not in workers:
        return (
            f"was begun {ago} ago by {node}, which does not answer: if that is gone, it runs again once its "
            "lease ends"
        )
    sentence = AFTER.get(name, "last known {ago} ago: " + name)
    text: str = sentence.format(ago=ago, node=node, why=event.get("error") or event.get("reason"))
    return text


def _waits(why: str, left: float) -> str:
    if left > 0:
        return f"hidden {why}, comes back in {duration_text(left)}"
    return f"was hidden {why}, and has been due for {duration_text(-left)}: it waits in SQS, or has succeeded"


def _show(found: Found) -> None:
    say(f"{found.task_id}: {verdict(found, SYSTEM_CLOCK.wall())}")
    for event in found.history:
        say(f"  {event_text(event)}")
    if found.result.get("status"):
        result = found.result.get("result")
        say(f"  result backend: {found.result['status']}" + (f": {result}" if result else ""))
    for sentence in found.unknown:
        say(f"Not known: {sentence}")
