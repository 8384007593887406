from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.app import behind, close_app, make_app
from support.clock import FakeClock
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.operate.commands import sqs as group
from celery_sqs_visibility.operate.queue_depths import QueueDepth
from celery_sqs_visibility.operate.queue_metrics import OLDEST, TRAFFIC, QueueMetrics
from celery_sqs_visibility.operate.status import command
from celery_sqs_visibility.operate.status.report import METRICS_SECONDS, QueueReport, QueueStatus, Status
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prices import usd_of

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


def test_a_fifo_queue_costs_more():
    assert usd_of(1_000_000, "q.fifo") > usd_of(1_000_000, "q")


@pytest.mark.parametrize(
    ("error", "status"), [(None, 0), (UnavailableError("gone"), 1), (AccessDeniedError("no"), 77)]
)
def test_the_exit_status_says_whether_queues_were_counted(error, status):
    depth = QueueDepth("q", 1, 0, 0) if error is None else QueueDepth("q", error=error)
    assert Status([QueueStatus(depth)]).exit_status == status


# The command.


@pytest.fixture
def run(emulator, queue, sqs):
    """Run a command of the group, with an app whose only queue has a message."""
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="m")
    app = make_app("status", behind(emulator.url, {"task_default_queue": queue}), set_as_current=False)

    def invoke(*args):
        return CliRunner().invoke(group, args, obj=SimpleNamespace(app=app))

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


def test_watching_goes_on_until_ctrl_c():
    taken, shown = iter([1, 2]), []

    def take():
        for each in taken:
            return each
        raise KeyboardInterrupt

    command._watch(take, shown.append, 0.001)
    assert shown == [1, 2]


def test_workers_are_shown_with_their_pauses(capsys):
    mail = {"paused": True, "seconds_left": 492.0, "held": 3, "running": 1}
    other = {"paused": False, "seconds_left": None, "held": 1, "running": 1}
    workers = {
        "a@h": {"pool": "prefork", "slots": 4, "busy": 2, "queues": {"mail": mail, "other": other}},
        "b@h": {"error": "KeyError('sqs_queues')"},
    }
    command._show(Status([], workers))
    shown = capsys.readouterr().out
    assert "a@h     prefork  2/4            4  mail (8m12s left)" in shown
    assert "b@h" in shown
    assert "KeyError" in shown


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_without_remote_control_a_sentence_says_what_to_set(run, name):
    result = run(name, "q")
    assert result.exit_code == 69
    assert "'remote_control': True" in result.output


def test_a_wrong_duration_is_a_wrong_usage(run):
    result = run("pause", "q", "--for", "soon")
    assert result.exit_code == 2
    assert "10m" in result.output
