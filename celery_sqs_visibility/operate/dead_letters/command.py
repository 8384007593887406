"""`celery -A proj sqs dead-letters list | show | retry | delete`."""

from __future__ import annotations

import dataclasses
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Final, TypeVar

import click

from celery_sqs_visibility.aws.queues import DELAYED, HIDDEN, VISIBLE, Queue
from celery_sqs_visibility.errors import RefusedError
from celery_sqs_visibility.operate.dead_letters.letter import (
    GROUPING,
    SHORT_ID_CHARACTERS,
    Letter,
    Selection,
    grouped,
    grouping,
    letter_facts,
    show_facts,
    show_groups,
    show_letters,
)
from celery_sqs_visibility.operate.dead_letters.moves import Moves, Outcome, move_all
from celery_sqs_visibility.operate.dead_letters.session import (
    HeldMessages,
    Place,
    Session,
    count_if_known,
    find_place,
    given_back,
    release,
    session_of,
)
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import (
    PASSING,
    CommandError,
    app_of,
    broker_of,
    counted,
    duration,
    json_option,
    own_command,
    say,
    show_json,
    with_retries,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

F = TypeVar("F", bound=Callable[..., Any])

LETTER: Final = "dead letter"

#: How many letters a list shows by default.
LISTED: Final = 100

_FILTERS: Final = (
    click.option("--task", metavar="GLOB", help="Only of tasks whose name matches: 'proj.import_*'."),
    click.option("--exception", metavar="GLOB", help="Only with an exception of this name: 'ValueError'."),
    click.option("--older-than", type=duration, help="Only given up longer ago than this: 90s, 10m, 2h, 1d."),
    click.option("--newer-than", type=duration, help="Only given up within this time."),
    click.option(
        "--any-source", is_flag=True, help="Also those of other queues that share QUEUE's dead-letter queue."
    ),
)


def _place_options(command: F) -> F:
    """Add QUEUE and the option for its dead-letter queue. The command gets a `Place` instead."""

    @click.argument("queue")
    @click.option(
        "--dead-letter-queue",
        "letters",
        metavar="NAME",
        help="Where QUEUE's dead letters are, by Celery's name; otherwise where its redrive policy or the "
        "option dead_letter_queue says.",
    )
    @wraps(command)
    def with_place(queue: str, letters: str | None, **options: Any) -> None:
        with broker_of(app_of(click.get_current_context())) as context:
            place = with_retries(partial(find_place, context, queue, letters), PASSING)
            command(place, **options)

    return with_place  # type: ignore[return-value] # click's commands return nothing


def _filters(command: F) -> F:
    for each in reversed(_FILTERS):
        command = each(command)
    return command


def _choice(command: F) -> F:
    """Add IDs, --all, the filters and --limit."""
    command = click.option("--limit", type=click.IntRange(1), help="Maximum number of letters.")(command)
    everything = "All of QUEUE, or all that match the filters."
    command = click.option("--all", "everything", is_flag=True, help=everything)(_filters(command))
    return click.argument("ids", metavar="[ID]...", nargs=-1)(command)


def _selection(place: Place, *, any_source: bool, **filters: Any) -> Selection:
    return Selection(sources=None if any_source else place.source_names, **filters)


@click.group()
def dead_letters() -> None:
    """Look at dead letters, send them back, delete them.

    QUEUE is the queue whose messages failed. To look at a message is to receive it: it is hidden for the
    while, and given back at the end, at Ctrl-C, too.
    """


@dead_letters.command("list")
@_place_options
@_filters
@click.option(
    "--by",
    type=grouping,
    metavar="NAMES",
    help=f"Count them in groups by one or more of {', '.join(GROUPING)}: 'exception,task'.",
)
@click.option("--limit", type=click.IntRange(1), help=f"Most letters: {LISTED}; with --by all.")
@json_option
def list_letters(
    place: Place, by: tuple[str, ...] | None, limit: int | None, *, as_json: bool, **filters: Any
) -> None:
    """List the dead letters of QUEUE, the oldest first, or groups of them, the largest first."""
    limit = limit or (None if by else LISTED)
    with session_of(place, _selection(place, **filters), limit) as session:
        now = session.now()
        summaries = [letter.summary(now) for letter in session.letters()]
    summaries.sort(key=lambda letter: -letter["age_seconds"])
    if as_json:
        show_json(grouped(summaries, by) if by else summaries)
    elif not summaries:
        say(f"No dead letters in {place.letters.name!r} that match{_of_those(session)}.")
    else:
        if by:
            show_groups(grouped(summaries, by), by)
        else:
            show_letters(summaries)
        if len(summaries) == limit:
            say(f"There may be more than {limit}: see --limit.")


@dead_letters.command("show")
@_place_options
@click.argument("letter_id", metavar="ID")
@json_option
def show_letter(place: Place, letter_id: str, as_json: bool) -> None:  # noqa: FBT001 - click's
    """Show one in full: attributes, arguments, headers, traceback, body.

    ID is the message's or the task's, or its first eight characters.
    """
    with session_of(place, Selection([_checked_id(letter_id)]), None) as session:
        letter = next(session.letters(), None)
        if letter is None:
            raise _not_there(session)
        facts = letter_facts(letter, place.letters, place.context.payloads, session.now())
    (show_json if as_json else show_facts)(facts)


@dead_letters.command("retry")
@_place_options
@_choice
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of messages a second.")
@click.option(
    "--yes", is_flag=True, help="Do not ask before sending all letters, or any to queues other than QUEUE."
)
@click.option("--dry-run", is_flag=True, help="List what would be sent back, without sending it.")
@click.option(
    "--native",
    is_flag=True,
    help="SQS itself moves the whole dead-letter queue to QUEUE; nobody looks at the letters.",
)
@click.option(
    "--follow",
    "follow_seconds",
    type=duration,
    metavar="TIME",
    help="Wait this long (60s, 10m), then count those that came back as dead letters; some: exit status 1.",
)
@json_option
def retry_letters(
    place: Place,
    ids: tuple[str, ...],
    *,
    everything: bool,
    limit: int | None,
    rate: float | None,
    yes: bool,
    dry_run: bool,
    native: bool,
    follow_seconds: float | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Send dead letters back to their queue, with all their attempts.

    Each is sent first and deleted second. So it may be interrupted at any moment: a message may then run
    twice, and none is lost. --all asks before. A letter may name another queue than QUEUE: that is asked
    about, once for each queue.
    """
    selection = _chosen(place, ids, everything, filters)
    if native and (ids or dry_run or limit or follow_seconds is not None or any(filters.values())):
        raise click.UsageError("--native moves all messages: it goes with --all and --rate only")
    if dry_run and follow_seconds is not None:
        raise click.UsageError("--dry-run sends nothing that --follow could wait for: leave out one of them")
    if everything and not (yes or dry_run):
        which = _which(place, ids, filtered=any(filters.values()))
        click.confirm(f"Run the tasks again of {which}?", abort=True, err=True)
    if native:
        _show_moved(move_all(place, rate), as_json=as_json)
        return
    with session_of(place, selection, limit) as session:
        if dry_run:
            _show_plan(session, as_json=as_json)
            return
        moves = Moves(place, session.held, session.stop, place.context.payloads, rate)
        if not yes:
            moves.agrees = partial(_agrees, session)
        with _report("sent back", moves.outcome, session, as_json=as_json, follow_seconds=follow_seconds):
            for batch in session.batches():
                moves.send_back(batch)


@dead_letters.command("delete")
@_place_options
@_choice
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete_letters(
    place: Place,
    ids: tuple[str, ...],
    *,
    everything: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Delete dead letters for good."""
    selection = _chosen(place, ids, everything, filters)
    if not yes:
        which = _which(place, ids, filtered=any(filters.values()))
        click.confirm(f"Delete {which} for good?", abort=True, err=True)
    with session_of(place, selection, limit) as session:
        moves = Moves(place, session.held, session.stop)
        with _report("deleted", moves.outcome, session, as_json=as_json):
            for batch in session.batches():
                moves.delete(batch)


def _chosen(place: Place, ids: tuple[str, ...], everything: bool, filters: dict[str, Any]) -> Selection:  # noqa: FBT001
    # `--any-source` is not a filter: it selects more letters.
    filtered = any(value is not None for name, value in filters.items() if name != "any_source")
    if bool(ids) == everything and (ids or not filtered):
        raise click.UsageError("name the dead letters by their IDs, or by a filter, or take all by --all")
    checked = [_checked_id(each) for each in ids]
    return _selection(place, ids=checked, **{**filters, "any_source": filters["any_source"] or bool(ids)})


def _checked_id(text: str) -> str:
    if len(text) < SHORT_ID_CHARACTERS:
        raise click.UsageError(
            f"{text!r} is too short for an ID: give {SHORT_ID_CHARACTERS} characters of it"
        )
    return text


def _which(place: Place, ids: tuple[str, ...], *, filtered: bool) -> str:
    """A description of the letters that a question is about."""
    if ids:
        which = counted(len(ids), LETTER)
    elif filtered:
        which = "all dead letters that match"
    else:
        number = count_if_known(place.letters, VISIBLE)
        which = "all dead letters" if number is None else f"all dead letters (about {number})"
    return f"{which} of queue {place.source.name!r} from {place.letters.name!r}"


def _agrees(session: Session, target: Queue) -> bool:
    source = session.place.source.name
    return session.agrees(f"Send dead letters to queue {target.name!r} ({target.url}) instead of {source!r}?")


def _show_plan(session: Session, *, as_json: bool) -> None:
    now, place = session.now(), session.place
    letters = list(session.letters())
    targets = [_named_target(place, letter) for letter in letters]
    if as_json:
        pairs = zip(letters, targets, strict=True)
        show_json([{**letter.summary(now), "to": target} for letter, target in pairs])
    else:
        if letters:
            show_letters([letter.summary(now) for letter in letters])
        say(f"{counted(len(letters), LETTER)} would be sent back{_to_queues(Counter(targets))}.")
    if session.missing():
        raise _not_there(session)


def _show_moved(moved: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(moved)
    else:
        say(f"SQS moved {counted(moved['moved'], 'message')} to {moved['to']!r}.")


def _named_target(place: Place, letter: Letter) -> str:
    """Celery's name of the queue that a letter would go to, or the name in the letter."""
    try:
        return place.target_of(letter).name
    except RefusedError:
        return str(letter.source)


def _to_queues(sent_to: Counter[str]) -> str:
    """The queues that letters went to, as the end of a sentence."""
    if len(sent_to) <= 1:
        return "".join(f" to {name!r}" for name in sent_to)
    return ": " + ", ".join(f"{number} to {name!r}" for name, number in sent_to.items())


@contextmanager
def _report(
    done: str, outcome: Outcome, session: Session, *, as_json: bool, follow_seconds: float | None = None
) -> Iterator[None]:
    """Print what was done with the letters, even after an error or Ctrl-C, and follow them if asked."""
    followed: Followed | None = None
    try:
        yield
        if follow_seconds is not None and outcome.done and not session.stop.is_set():
            followed = follow(session, outcome, follow_seconds)
    finally:
        is_interrupted = session.stop.is_set() and followed is None  # after that it only ended the wait
        if as_json:
            facts = {"interrupted": is_interrupted, "followed": followed and dataclasses.asdict(followed)}
            show_json({**vars(outcome), **facts})
        else:
            _show_outcome(done, outcome, _of_those(session))
            if followed is not None:
                _show_followed(outcome, followed, session.place)
    if is_interrupted:
        raise CommandError("interrupted: the others are still dead letters")
    if outcome.failed:
        raise CommandError(f"{counted(len(outcome.failed), LETTER)} left")
    if session.missing():
        raise _not_there(session)
    if followed is not None and followed.came_back:
        queue = shlex.quote(session.place.source.name)
        listing = f"{own_command()} dead-letters list {queue} --by exception,task"
        raise CommandError(f"{counted(len(followed.came_back), 'task')} failed for good again: {listing}")


@dataclasses.dataclass(frozen=True, slots=True)
class Followed:
    """What became of letters that were sent back.

    Attributes:
        came_back: ids of the tasks that are dead letters again.
        in_queue: approximate number of messages in the source queue, including hidden ones; `None` if
            unknown.
    """

    seconds: int
    came_back: list[str]
    in_queue: int | None


def follow(session: Session, outcome: Outcome, seconds: float) -> Followed:
    """Wait, then look for tasks that were sent back and are dead letters again. The command's thread.

    Ctrl-C and SIGTERM end only the wait. Letters without a task id are not recognised.

    Raises:
        SQSError: SQS does not answer, or refuses.
    """
    release(session.held)  # give back letters that the command only looked at
    say(
        f"Sent back {counted(len(outcome.done), LETTER)}. Waiting {duration_text(seconds)} (Ctrl-C "
        "ends the wait), then looking for those that came back: they are received and given back at once.",
        err=True,
    )
    began = SYSTEM_CLOCK.monotonic()
    session.stop.wait(seconds)
    waited = round(SYSTEM_CLOCK.monotonic() - began)
    came_back = _letters_again(session, outcome)
    return Followed(waited, came_back, count_if_known(session.place.source, VISIBLE, HIDDEN, DELAYED))


def _letters_again(session: Session, outcome: Outcome) -> list[str]:
    # Not the session's event, which has ended the wait. A second Ctrl-C raises.
    stop, sent = threading.Event(), frozenset(filter(None, outcome.task_ids))
    held = HeldMessages(session.place.letters, SYSTEM_CLOCK, stop)
    place, ahead = dataclasses.replace(session.place), session.clock_offset  # a copy, which counts anew
    look = Session(place, Selection(sent), None, held, stop, ahead, began=session.now())
    with given_back(look):
        letters = list(look.letters())
    deleted = set(outcome.done)  # those that could not be deleted are part of the outcome
    return sorted({str(letter.task_id) for letter in letters if letter.id not in deleted})


def _not_there(session: Session) -> CommandError:
    """The error about ids that match no letter."""
    letters = session.place.letters
    ids = ", ".join(map(repr, session.missing()))
    why = "it is another's, does not pass the filters, or somebody else is looking at it"
    if letters.fifo:
        why += "; and of a group of a FIFO queue only the first ten can be seen at a time"
    return CommandError(f"there is no dead letter {ids} in {letters.name!r}: {why}")


def _of_those(session: Session) -> str:
    """The end of a sentence about no letters, if there may be some that SQS does not hand out."""
    return ", of those that SQS gives" if session.behind else ""


def _show_outcome(done: str, outcome: Outcome, of_those: str) -> None:
    number = len(outcome.done)
    if number or outcome.failed:
        were = "was" if number == 1 else "were"
        say(f"{counted(number, LETTER)} {were} {done}{_to_queues(outcome.sent_to)}.")
    else:
        say(f"No dead letters match{of_those}: none were {done}.")
    for letter_id, reason in outcome.failed.items():
        say(f"{letter_id} was not: {reason}", err=True)


def _show_followed(outcome: Outcome, followed: Followed, place: Place) -> None:
    known = len(set(filter(None, outcome.task_ids)))
    back, waited = len(followed.came_back), duration_text(followed.seconds)
    say(f"{back} of {counted(known, 'task')} came back within {waited}.")
    if followed.in_queue is not None:
        say(f"About {counted(followed.in_queue, 'message')} wait in {place.source.name!r} or run now.")
    if unknown := outcome.task_ids.count(None):
        say(f"{counted(unknown, LETTER)} without a task's id could not be followed.")
