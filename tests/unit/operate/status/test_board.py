"""The board of `status --watch`, as a terminal shows it."""

import io
import sys

import pytest
from rich.console import Console

from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.status import board as module
from celery_sqs_visibility.operate.status.board import Board
from celery_sqs_visibility.operate.status.report import QueueStatus, QueueWork, Status

ANSWER = {
    "pool": "prefork",
    "slots": 4,
    "busy": 2,
    "queues": {"reports": {"paused": False, "seconds_left": None, "held": 3, "hidden": 0, "running": 2}},
}


@pytest.fixture
def board(clock):
    return Board(clock)


def run(clock, ends_in, began=100.0, **more):
    now = clock.wall()
    return {
        "message_id": "m",
        "queue": "reports",
        "task": "proj.yearly",
        "attempt": 1,
        "began": now - began,
        "lease_ends": None if ends_in is None else now + ends_in,
        **more,
    }


def shown(board, width=80, encoding="utf-8", **options):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding)
    console = Console(file=file, width=width, force_terminal=True, color_system=None, **options)
    console.print(board)
    file.flush()
    return raw.getvalue().decode(encoding)


def lease(board, width=80):
    (line,) = [each for each in shown(board, width).splitlines() if "proj.yearly" in each]
    return line


def test_before_the_first_look_it_says_whom_it_asks(board):
    assert "asking SQS" in shown(board)


def test_a_lease_runs_down_between_looks_and_jumps_at_an_extension(board, clock):
    board.note(Status([], runs={"a@h": [run(clock, 60)]}))
    lines = [lease(board)]
    clock.advance(30)
    lines.append(lease(board))
    board.note(Status([], runs={"a@h": [run(clock, 60, began=60)]}))
    lines.append(lease(board))
    assert [line.split()[-2:] for line in lines[:2]] == [["████████", "1m"], ["████░░░░", "30s"]]
    assert "▲ extended" in lines[2]
    clock.advance(5)
    assert "▲" not in lease(board), "the mark goes"


def test_a_lease_that_has_ended_says_so(board, clock):
    board.note(Status([], runs={"a@h": [run(clock, 10)]}))
    clock.advance(12)
    assert "ended 2s ago" in lease(board)


def test_a_run_without_a_message_has_no_lease(board, clock):
    board.note(Status([], runs={"a@h": [run(clock, None)]}))
    assert "none: acknowledged" in shown(board)


def test_a_silent_worker_grows_older_between_looks_and_keeps_its_runs(board, clock):
    board.note(Status([], silent={"a@h": 37.0}, runs={"a@h": [run(clock, 60)]}))
    clock.advance(3)
    text = shown(board)
    assert "silent for 40s" in text
    assert "57s" in text


def test_the_longest_runs_come_first_and_ten_at_most(board, clock):
    runs = [run(clock, 60, began=number, message_id=str(number), task=f"t{number}") for number in range(9)]
    waits = run(clock, 60, message_id="w", task="waiting", began=0) | {"began": None}
    board.note(
        Status([], runs={"a@h": [*runs, waits], "b@h": [run(clock, 60), run(clock, 60, message_id="n")]})
    )
    text = shown(board, 200)
    assert "waiting" not in text
    assert text.index("proj.yearly") < text.index("t8") < text.index("t7")
    assert "t0" not in text


@pytest.mark.parametrize("width", [80, 200])
def test_it_fits_the_terminal(board, clock, width):
    work = QueueWork(workers=2, slots=8, running=8, held=9, waited=64.2)
    depth = QueueDepth("orders", 120_400, 1600, 30, 250.0, 12)
    queue = QueueStatus(depth, 11_840_000, 4.7361, work=work, sent=12.5, deleted=13.5, change=-1.0)
    nobody = QueueStatus(QueueDepth("mail", 3, 0, 0), work=QueueWork())
    board.note(Status([queue, nobody], {"worker1@ip-10-0-0-1": ANSWER}, runs={"a@h": [run(clock, 60)]}))
    lines = shown(board, width).splitlines()
    assert max(map(len, lines)) <= width
    for text in ("orders", "120400", "1d9h", "prefork", "slots are taken", "NO WORKER"):
        assert text in " ".join(lines), text
    assert sum("120400" in line or "4.7361" in line for line in lines) == (1 if width == 200 else 2)


def test_a_terminal_without_utf_8_gets_ascii(board, clock):
    board.note(Status([], runs={"a@h": [run(clock, 30)]}))
    assert "########" in shown(board, encoding="ascii")


def test_there_is_no_console_without_a_terminal_or_on_a_dumb_one(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert module.new_console(colours=True) is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert module.new_console(colours=True) is None
    monkeypatch.setenv("TERM", "xterm-256color")
    assert module.new_console(colours=False).color_system is None
    assert module.new_console(colours=True).color_system == "256"


def test_it_is_drawn_on_a_terminal():
    raw = io.StringIO()
    with module.drawn_on(Console(file=raw, force_terminal=True, width=80)) as show:
        show(Status([], notes=("the first look",)))
    assert "the first look" in raw.getvalue()
