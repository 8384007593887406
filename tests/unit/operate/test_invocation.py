"""What commands share."""

import io
import json
import sys

import click
import pytest
from celery import Celery

from celery_sqs_visibility.errors import (
    AccessDeniedError,
    OptionError,
    QueueDoesNotExistError,
    UnavailableError,
)
from celery_sqs_visibility.operate.invocation import (
    CommandError,
    broker_of,
    errors_as_sentences,
    own_command,
    say,
    show_json,
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-A", "shop", "sqs", "doctor", "-Q", "a"], "celery -A shop sqs"),
        (["--app=shop.app:make", "sqs"], "celery -A shop.app:make sqs"),
        (["sqs", "doctor", "--all"], "celery sqs"),
    ],
)
def test_a_command_to_paste_names_the_app_as_this_one(monkeypatch, given, expected):
    monkeypatch.setattr(sys, "argv", ["celery", *given])
    assert own_command() == expected


@pytest.mark.parametrize(
    ("error", "shown", "status"),
    [
        (AccessDeniedError("no"), CommandError, 77),
        (UnavailableError("no"), CommandError, 69),
        (OptionError("no"), click.UsageError, 2),
        (QueueDoesNotExistError("no"), CommandError, 1),
        (click.Abort(), click.Abort, None),
        (click.UsageError("no"), click.UsageError, 2),
    ],
)
def test_an_error_of_ours_is_a_sentence_with_an_exit_status(error, shown, status):
    with pytest.raises(shown) as raised, errors_as_sentences():
        raise error
    assert (raised.type, getattr(raised.value, "exit_code", None)) == (shown, status)


@pytest.mark.parametrize(("name", "called"), [("elsewhere", "app 'elsewhere'"), (None, "the app")])
def test_an_app_on_another_broker_is_told_which_transport_to_set(name, called):
    words = f"the broker of {called} is memory://.* set broker_transport = 'celery_sqs_visibility'"
    with (
        Celery(name, broker="memory://", set_as_current=False) as app,
        pytest.raises(CommandError, match=words),
        broker_of(app),
    ):
        pass


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_terminal_that_lacks_a_character_gets_its_escape(monkeypatch, encoding):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", terminal)
    say("\u00e9\u6f22")
    show_json(["\u00e9\u6f22"])
    said, shown = terminal.buffer.getvalue().decode(encoding).split("\n", 1)
    assert said == "\u00e9\\u6f22"
    assert json.loads(shown) == ["\u00e9\u6f22"]
