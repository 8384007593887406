import json
import sys
from functools import partial

import pytest
from support.app import behind, close_app, make_app
from support.commands import invoke

from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.status import command as module
from celery_sqs_visibility.operate.status.report import QueueStatus, Status

NOTHING_IS_LEFT = {"queue": "q", "visible": 1, "in_flight": 0, "delayed": 0, "dead_letters": None}


@pytest.fixture
def run(emulator, queue, sqs):
    """Run a command of the group, with an app whose only queue has a message."""
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="m")
    app = make_app("status", behind(emulator.url, {"task_default_queue": queue}), set_as_current=False)

    yield partial(invoke, app)
    close_app(app)


def test_the_table_has_the_queues_and_says_why_figures_are_missing(run, queue):
    result = run("status")
    assert result.exit_code == 0, result.output
    columns, row, *notes = result.output.splitlines()
    assert columns.split()[:2] == ["queue", "visible"]
    assert row.split() == [queue, "1", "0", "0", *["-"] * 7]
    assert "CloudWatch knows nothing" in " ".join(notes)
    assert "'remote_control': True" in " ".join(notes)


def test_the_json_has_the_same_figures(run, queue):
    (figures,) = json.loads(run("status", "--json").stdout)["queues"]
    assert figures.items() >= {**NOTHING_IS_LEFT, "queue": queue}.items()


def test_watching_goes_on_until_ctrl_c_and_frames_that_are_piped_do_not_run_together(capsys):
    taken = iter(["a", "b"])

    def take():
        for each in taken:
            return each
        raise KeyboardInterrupt

    module.watch(take, module.framed(print), 0.001)
    assert capsys.readouterr().out == "a\n\nb\n"


def test_without_rich_the_tables_are_watched(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert module._board(colours=True) is not None
    monkeypatch.delattr("celery_sqs_visibility.operate.status.board")
    monkeypatch.setitem(sys.modules, "celery_sqs_visibility.operate.status.board", None)
    assert module._board(colours=True) is None


@pytest.mark.parametrize("queues", [["orders"], ["orders-of-a-shop-with-a-rather-long-name", "mail"]])
def test_tables_fit_a_terminal(monkeypatch, capsys, queues):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    rows = [QueueStatus(QueueDepth(q, 120_400, 1600, 30, 250.0, 12), 11_840_000, 4.7361) for q in queues]
    module.show_status(Status(rows))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    name = "".join(line[: line.find("  ")] if "  " in line else line for line in lines[1:])
    assert name.startswith(queues[0])


def test_workers_are_shown_with_their_pauses(capsys):
    mail = {"paused": True, "seconds_left": 492.0, "held": 3, "hidden": 12, "running": 1}
    other = {"paused": False, "seconds_left": None, "held": 1, "running": 1}
    workers = {
        "a@h": {"pool": "prefork", "slots": 4, "busy": 2, "queues": {"mail": mail, "other": other}},
        "b@h": {"error": "KeyError('sqs_queues')"},
    }
    kept = {"orders": {**mail, "kept": True}, "reports": {**mail, "seconds_left": None, "kept": True}}
    tasks = {"proj.import": None, "proj.export": 60.0}
    workers["c@h"] = {"pool": "solo", "slots": 1, "busy": 0, "queues": kept, "paused_tasks": tasks}
    module.show_status(Status([], workers))
    shown = capsys.readouterr().out
    assert "a@h     prefork  2/4            4      12  mail (8m12s left)" in shown
    paused = "orders (8m12s left, kept), reports (kept), task proj.import, task proj.export (1m left)"
    assert paused in shown
    assert "b@h" in shown
    assert "KeyError" in shown
