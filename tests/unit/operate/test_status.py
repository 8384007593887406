from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.app import behind, close_app, make_app
from support.clock import FakeClock
from support.factories import CrowdedSQS
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CommandNotSentError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.operate import status as module
from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.commands import sqs as group
from celery_sqs_visibility.operate.queue_metrics import OLDEST, TRAFFIC, QueueMetrics
from celery_sqs_visibility.operate.status import METRICS_SECONDS, QueueReport, QueueStatus, Status
from celery_sqs_visibility.policy.options import Options

NOTHING_IS_LEFT = {"queue": "q", "visible": 1, "in_flight": 0, "delayed": 0, "dead_letters": None}


@pytest.fixture
def report():
    """Make a report of the queue "q"; `report.clock` is CloudWatch's and its own."""

    def make(cloudwatch):
        sqs = FakeSQS(FakeClock())
        sqs.create_queue("q", {}, {})
        context = SimpleNamespace(queues=Queues(sqs), redrive=RedriveBook(), options=Options.parse({}))
        metrics = QueueMetrics(lambda _queue: cloudwatch, make.clock)
        return QueueReport(context, ["q"], metrics, make.clock)

    make.clock = FakeClock()
    return make


def test_requests_and_cost_are_an_estimate_and_the_report_says_so(report):
    cloudwatch = FakeCloudWatch({("q", OLDEST): [7.0], ("q", TRAFFIC[0]): [999_999.0, 1.0]})
    taken = report(cloudwatch).take()
    (row,) = taken.queues
    assert (row.depth.oldest_age_seconds, row.requests_a_day, row.usd_a_day) == (7.0, 1_000_000, 0.4)
    assert "estimate" in taken.notes[0]


def test_a_queue_near_its_quota_in_flight_is_a_sentence_of_the_report(report, monkeypatch):
    taking = report(FakeCloudWatch({}))
    monkeypatch.setattr(taking._context.queues, "_sqs", sqs := CrowdedSQS(FakeClock()))
    sqs.create_queue("q", {}, {})
    said = []
    for sqs.in_flight in (95_999, 96_000):
        said.append([note for note in taking.take().notes if "in flight" in note])
    assert said[0] == []
    assert said[1][0].startswith(
        "queue 'q' has 96,000 messages in flight: beyond about 120,000 SQS hands out"
    )


def test_cloudwatch_is_asked_once_a_minute(report):
    cloudwatch = FakeCloudWatch({("q", OLDEST): [7.0]})
    taking = report(cloudwatch)
    for _ in range(3):
        assert taking.take().queues[0].depth.oldest_age_seconds == 7.0
    assert len(cloudwatch.spans) == 2, "one request for ages, and one for the traffic"
    report.clock.advance(METRICS_SECONDS)
    taking.take()
    assert len(cloudwatch.spans) == 4


def test_a_right_that_cloudwatch_misses_is_one_sentence_and_no_failure(report):
    taken = report(FakeCloudWatch(error=AccessDeniedError("no"))).take()
    assert [note for note in taken.notes if "cloudwatch:GetMetricData" in note] == list(taken.notes)
    assert taken.exit_status == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, 0), (UnavailableError("gone"), 69), (ThrottledError("slow"), 1), (AccessDeniedError("no"), 77)],
)
def test_the_exit_status_says_whether_queues_were_counted(error, status):
    depth = QueueDepth("q", 1, 0, 0) if error is None else QueueDepth("q", error=error)
    assert Status([QueueStatus(depth)]).exit_status == status


@pytest.fixture
def run(emulator, queue, sqs):
    """Run a command of the group, with an app whose only queue has a message."""
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="m")
    app = make_app("status", behind(emulator.url, {"task_default_queue": queue}), set_as_current=False)

    def invoke(*args, **options):
        return CliRunner().invoke(group, args, obj=SimpleNamespace(app=app), **options)

    yield invoke
    close_app(app)


def test_the_table_has_the_queues_and_says_why_figures_are_missing(run, queue):
    result = run("status")
    assert result.exit_code == 0, result.output
    columns, row, *notes = result.output.splitlines()
    assert columns.split()[:2] == ["queue", "visible"]
    assert row.split() == [queue, "1", "0", "0", "-", "-", "-", "-"]
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

    module.watch(take, print, 0.001)
    assert capsys.readouterr().out == "a\n\nb\n"


def test_a_queue_that_does_not_answer_is_as_it_was_and_its_age_is_told(report, capsys):
    cloudwatch = FakeCloudWatch({("q", OLDEST): [7.0]})
    taking = report(cloudwatch)
    taking.take()
    sqs = taking._context.queues.sqs
    report.clock.advance(14)
    sqs.fail_next("GetQueueAttributes", UnavailableError("no answer"))
    taken = taking.take()
    (row,) = taken.queues
    assert (row.depth.visible, row.depth.oldest_age_seconds, row.age_seconds) == (0, 7.0, 14)
    module.show_status(taken)
    shown = capsys.readouterr().out
    assert "old figures: q 14s ago" in shown
    assert "no answer" in shown
    (row,) = taking.take().queues
    assert (row.age_seconds, row.depth.error) == (0, None)


def test_workers_that_cannot_be_asked_are_as_they_were(monkeypatch):
    answers = iter([{"a@h": {}}, CommandNotSentError("no answer"), {}])

    def ask(*_):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    clock = FakeClock()
    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "is_controlled", lambda _app: True)
    workers = module.WorkerAnswers(object(), 1.0, clock)
    seen = []
    for _ in range(3):
        seen.append(workers.add_to(Status([])))
        clock.advance(9)
    assert [dict(each.workers) for each in seen] == [{"a@h": {}}, {"a@h": {}}, {}]
    assert [each.workers_age_seconds for each in seen] == [0, 9, 0]
    assert "cannot be asked: no answer" in seen[1].notes[0]


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
    module.show_status(Status([], workers))
    shown = capsys.readouterr().out
    assert "a@h     prefork  2/4            4      12  mail (8m12s left)" in shown
    assert "b@h" in shown
    assert "KeyError" in shown
