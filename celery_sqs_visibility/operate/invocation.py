"""Common parts of the commands of `celery -A proj sqs`: broker, output, errors, retries, signals."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from types import FrameType
from typing import Any, Final, TypeVar

import click
from celery import Celery
from kombu.exceptions import OperationalError

from celery_sqs_visibility.aws.attempts import attempt
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    OptionError,
    SQSError,
    SQSVisibilityError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.operate.figures import parse_duration
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import sleep
from celery_sqs_visibility.policy.printable import printable, printable_json, printable_lines
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.control_exchanges import EX_NOPERM, EX_UNAVAILABLE, REMEDY
from celery_sqs_visibility.transport.transport import Transport

F = TypeVar("F", bound=Callable[..., Any])

T = TypeVar("T")

#: Minimum width of a table's column.
MIN_COLUMN_CHARACTERS: Final = 6

#: Attempts at one request.
ATTEMPTS: Final = 5

#: Errors that pass. A request without an answer may have been carried out, a throttled one was not.
PASSING: Final = (ThrottledError, UnavailableError)

#: Decorates a command that takes `as_json`.
json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

#: Celery's own default (celery/bin/control.py).
ANSWER_SECONDS: Final = 1.0

CONTROL_IS_OFF: Final = f"remote control is off here: {REMEDY}"

#: Decorates a command that takes `timeout`.
timeout_option: Callable[[F], F] = click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=ANSWER_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the workers' answers.",
)


def duration(text: str) -> float:
    """The type of an option: a duration, in seconds."""
    try:
        return parse_duration(text, zero=True)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


#: Decorate a command that takes `log_group`, and one that takes `since`, in seconds.
log_group_option: Callable[[F], F] = click.option(
    "--log-group", metavar="NAME", help="CloudWatch's log group of the workers' JSON log lines."
)
since_option: Callable[[F], F] = click.option(
    "--since",
    type=duration,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="How far back to read the log group.",
)


class CommandError(click.ClickException):
    """Printed as one line; ends the command with that exit status."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # click reads it from the instance

    def format_message(self) -> str:
        """The message as click prints it."""
        return printable_lines(super().format_message())


def app_of(ctx: click.Context) -> Celery:
    """The app that `-A` names, with its tasks."""
    app: Celery = ctx.obj.app
    app.loader.import_default_modules()
    return app


@contextmanager
def broker_of(app: Celery) -> Iterator[BrokerContext]:
    """Open the app's broker for a command.

    Raises:
        CommandError: the app is not on this transport, its options are wrong, or SQS refuses.
    """
    with errors_as_sentences(), app.connection_for_read() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            whose = f"app {app.main!r}" if app.main else "the app"  # which may have no name
            raise CommandError(
                f"the broker of {whose} is {connection.as_uri()}, and these commands are for "
                f"celery_sqs_visibility: {_how_to_switch(connection.transport_cls)}"
            )
        yield transport.context


def _how_to_switch(transport: object) -> str:
    if str(transport).lower() == "sqs":
        return f"{own_command()} doctor --from-kombu says what changes with it"
    return "set broker_transport = 'celery_sqs_visibility', and name the app by -A"


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print errors of this package as a line, and end the command with their exit status."""
    try:
        yield
    except click.ClickException:
        raise
    except AccessDeniedError as error:
        raise CommandError(str(error), EX_NOPERM) from error
    except UnavailableError as error:
        raise CommandError(str(error), EX_UNAVAILABLE) from error
    except OptionError as error:
        raise click.UsageError(str(error)) from error
    except SQSVisibilityError as error:
        raise CommandError(str(error)) from error


@contextmanager
def controlled_broker_of(app: Celery) -> Iterator[BrokerContext]:
    """Open the app's broker, for a command that asks the workers.

    Raises:
        CommandError: remote control is off.
    """
    with broker_of(app) as context:
        if not is_controlled(app):
            raise CommandError(CONTROL_IS_OFF, EX_UNAVAILABLE)
        yield context


def is_controlled(app: Celery) -> bool:
    """Returns whether workers with this app's settings take commands. Makes no request."""
    with app.connection_for_read() as connection:
        enabled = bool(app.conf.worker_enable_remote_control)
        return enabled and bool(connection.supports_exchange_type("fanout"))


def ask(
    app: Celery, command: str, timeout: float, nodes: Sequence[str] = (), **arguments: Any
) -> dict[str, Any]:
    """Send a command to all workers, or to these nodes. Returns the answers that come in time, by node."""
    replies: list[dict[str, Any]] = (
        app.control.broadcast(
            command, arguments=arguments, destination=list(nodes) or None, reply=True, timeout=timeout
        )
        or []
    )
    return dict(sorted((node, answer) for reply in replies for node, answer in reply.items()))


def ask_or_say(
    app: Celery, command: str, timeout: float, nodes: Sequence[str] = (), **arguments: Any
) -> tuple[dict[str, Any] | None, str]:
    """Call `ask`. Returns the answers, `None` if that is impossible, and a sentence if any are missing."""
    if not is_controlled(app):
        return None, f"the workers are not asked: {CONTROL_IS_OFF}"
    try:
        answers = ask(app, command, timeout, nodes, **arguments)
    except (SQSVisibilityError, OperationalError, OSError) as error:
        return None, f"the workers cannot be asked: {error}"
    return answers, "" if answers else nobody_answered(timeout)


def errors_in(answers: Mapping[str, Any]) -> list[str]:
    """The errors in workers' answers, a sentence each."""
    return [f"{node}: {answer['error']}" for node, answer in answers.items() if "error" in answer]


def nobody_answered(timeout: float) -> str:
    """A sentence that says that no worker answered."""
    return f"no worker answered within {timeout:g} s"


def own_command() -> str:
    """The beginning of a command to paste: `celery sqs`, with this command's `-A`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-A", "--app")
    app = parser.parse_known_args(sys.argv[1:])[0].app
    return f"celery -A {shlex.quote(app)} sqs" if app else "celery sqs"


def counted(number: int, noun: str) -> str:
    """A number with its noun, which is in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a text without control characters, in a style of click."""
    shown = printable_lines(text)
    encoding = _encoding(err=err)
    shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(click.style(shown, **style) if style else shown, err=err, nl=nl)


def show_json(value: Any) -> None:
    """Print a value as indented JSON; values of other types as text."""
    plain = not _encoding(err=False).lower().startswith("utf")  # escape what it can't show
    click.echo(printable_json(json.dumps(value, indent=2, default=str, ensure_ascii=plain)))


def _encoding(*, err: bool) -> str:
    """The terminal's encoding, which may lack characters of the text."""
    return getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"


@dataclass(frozen=True, slots=True)
class Table:
    """Column names, and a list of cells for each row; `None` is unknown."""

    columns: list[str]
    rows: list[list[Any]]

    @property
    def texts(self) -> list[list[str]]:
        """The rows as text."""
        return [["-" if cell is None else printable(str(cell)) for cell in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it has only numbers."""
        places = range(len(self.columns))
        return [all(isinstance(row[place], int | float | None) for row in self.rows) for place in places]

    @property
    def widths(self) -> list[int]:
        """For each column, the length of its longest cell."""
        return [max(map(len, column)) for column in zip(self.columns, *self.texts, strict=True)]

    @property
    def width(self) -> int:
        """The length of a line."""
        return sum(self.widths) + 2 * (len(self.columns) - 1)


def show_table(columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table, with numbers aligned to the right. On a terminal, cells are wrapped to fit."""
    table = Table(columns, rows)
    numeric, widths = table.numeric, table.widths
    if sys.stdout.isatty():
        widths = _fitted(widths, shutil.get_terminal_size().columns)
    for row in [columns, *table.texts]:
        broken = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*broken, fillvalue=""):
            cells = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ]
            say("  ".join(cells).rstrip())


def _fitted(widths: list[int], room: int) -> list[int]:
    """Narrow the widest columns until the table fits."""
    fitted = list(widths)
    while sum(fitted) + 2 * (len(fitted) - 1) > room and max(fitted) > MIN_COLUMN_CHARACTERS:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def with_retries(request: Callable[[], T], errors: tuple[type[SQSError], ...] = (ThrottledError,)) -> T:
    """Make a request, and repeat it after these errors. The command's thread.

    `PASSING` is for requests that may be carried out twice.

    Raises:
        SQSError: another error, or that of the last attempt.
    """
    return attempt(request, errors, map(pause, range(1, ATTEMPTS)))


def end_with_parent(parent: int, end: Callable[[], None]) -> None:
    """Call `end` in a thread when the parent process with that id has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        end()

    threading.Thread(target=watch, name="sqs-parent", daemon=True).start()


@contextmanager
def stop_on_signals(*, second_raises: bool = False) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; with `second_raises` the second is a KeyboardInterrupt."""
    stop = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if second_raises and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
