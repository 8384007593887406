"""The status of queues, from SQS, CloudWatch and workers."""

from types import SimpleNamespace

import pytest
from kombu.exceptions import OperationalError
from support.clock import FakeClock
from support.factories import CrowdedSQS
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CommandNotSentError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.operate import invocation
from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.queue_metrics import OLDEST, TRAFFIC, QueueMetrics
from celery_sqs_visibility.operate.status.report import (
    MAX_SILENT_SECONDS,
    METRICS_SECONDS,
    REQUESTS_OF_A_COMMAND,
    QueueReport,
    QueueStatus,
    QueueWork,
    Status,
    WorkerAnswers,
    work_of,
)
from celery_sqs_visibility.operate.status.tables import sentences
from celery_sqs_visibility.policy.options import Options


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
    monkeypatch.setattr(taking._context.queues, "sqs", sqs := CrowdedSQS(FakeClock()))
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
    assert len(cloudwatch.spans) == 4, "for ages, the traffic of a day, and the rates of both ways"
    report.clock.advance(METRICS_SECONDS)
    taking.take()
    assert len(cloudwatch.spans) == 8


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


def test_a_queue_that_does_not_answer_is_as_it_was_and_its_age_is_told(report):
    cloudwatch = FakeCloudWatch({("q", OLDEST): [7.0]})
    taking = report(cloudwatch)
    taking.take()
    sqs = taking._context.queues.sqs
    report.clock.advance(14)
    sqs.fail_next("GetQueueAttributes", UnavailableError("no answer"))
    taken = taking.take()
    (row,) = taken.queues
    assert (row.depth.visible, row.depth.oldest_age_seconds, row.age_seconds) == (0, 7.0, 14)
    assert next(sentences(taken)) == "old figures: q 14s ago"
    assert "no answer" in taken.notes[-1]
    (row,) = taking.take().queues
    assert (row.age_seconds, row.depth.error) == (0, None)


@pytest.mark.parametrize(
    ("sent", "deleted", "to_empty"), [(60.0, 180.0, 1.0), (180.0, 60.0, None), (60.0, 60.0, None)]
)
def test_the_time_to_drain_is_of_cloudwatchs_rates(report, sent, deleted, to_empty):
    cloudwatch = FakeCloudWatch({("q", TRAFFIC[1]): [sent, sent], ("q", TRAFFIC[3]): [deleted]})
    taking = report(cloudwatch)
    for _ in range(2):
        taking._context.queues.sqs.send(taking._context.queues.find("q").url, OutgoingMessage("m"))
    (row,) = taking.take().queues
    assert (row.sent, row.deleted) == (sent / 60, deleted / 60)
    assert row.seconds_to_empty == to_empty


def test_looks_ten_seconds_apart_know_better_than_cloudwatch_how_fast_a_queue_drains(report):
    taking = report(FakeCloudWatch({("q", TRAFFIC[1]): [600.0], ("q", TRAFFIC[3]): [0.0]}))
    sqs, queue = taking._context.queues.sqs, taking._context.queues.find("q")
    for _ in range(30):
        sqs.send(queue.url, OutgoingMessage("m"))
    changes = []
    for _ in range(3):
        (row,) = taking.take().queues
        changes.append(row.change)
        received = sqs.receive(queue.url, 5, 0, ReceiveOptions(60))
        sqs.delete(queue.url, [message["ReceiptHandle"] for message in received])
        report.clock.advance(5)
    assert changes[:2] == [10.0, 10.0], "CloudWatch's"
    assert (changes[2], row.messages, row.seconds_to_empty) == (-1.0, 20, 20.0)


def test_what_is_in_flight_and_not_held_is_hidden():
    row = QueueStatus(QueueDepth("q", 3, 10, 0), work=QueueWork(workers=1, slots=4, held=4, running=4))
    assert row.hidden == 6
    assert row.as_json().items() >= {"hidden": 6, "held": 4, "running": 4, "slots": 4}.items()
    assert QueueStatus(QueueDepth("q", 3, 10, 0)).hidden is None, "nobody was asked"


def test_a_queue_whose_messages_wait_says_why():
    nobody = QueueWork()
    assert QueueStatus(QueueDepth("q", 1, 0, 0), work=nobody).why == "NO WORKER that answered consumes it"
    assert QueueStatus(QueueDepth("q", 0, 0, 0), work=nobody).why is None


def test_the_cost_of_watching_is_told(report):
    said = report(FakeCloudWatch({})).cost(2, 8)
    assert said == "every 2 s about 10 requests a refresh, up to 432,000 a day: USD 0.17."
    taking = report(FakeCloudWatch({("q", TRAFFIC[0]): [1.0]}))
    taking.take()
    assert "and USD 0.10 for CloudWatch" in taking.cost(2, 8)


def worker(slots, busy, **queues):
    """An answer to `sqs_queues`; `queues` are numbers of runs, negative ones of paused queues."""
    return {
        "slots": slots,
        "busy": busy,
        "queues": {
            name: {
                "paused": runs < 0,
                "held": abs(runs) + 1,
                "running": abs(runs),
                "waited": float(abs(runs)),
            }
            for name, runs in queues.items()
        },
    }


def test_the_workers_that_consume_a_queue_are_summed_up():
    answers = {
        "a": worker(4, 3, orders=1, mail=2),
        "b": worker(2, 2, orders=2),
        "c": worker(8, 8, mail=8),
        "d": {"error": "KeyError('sqs_queues')"},
    }
    work = work_of("orders", answers)
    assert (work.workers, work.slots, work.free) == (2, 6, 1)
    assert (work.running, work.held, work.waited, work.others) == (3, 5, 2.0, {"mail": 2})


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({}, "NO WORKER that answered consumes it"),
        ({"a": worker(4, 4, mail=4)}, "NO WORKER that answered consumes it"),
        ({"a": worker(4, 0, orders=-1), "b": worker(4, 0, orders=-1)}, "it is paused"),
        ({"a": worker(4, 0, orders=-1), "b": worker(4, 3, orders=3)}, None),
        ({"a": worker(4, 4, orders=1, reports=3)}, "slots are taken by reports (3 of 4)"),
        ({"a": worker(4, 4, orders=3, reports=1)}, "all slots are taken (3 of 4 by its own tasks)"),
    ],
    ids=["no worker", "no consumer", "paused", "free", "others", "own"],
)
def test_a_queue_says_why_its_messages_wait(answers, why):
    assert work_of("orders", answers).why_waiting() == why


def braked(*brakes, **queues):
    """The answer of a worker with these brakes, by name and stage, in which all queues rest."""
    answer = worker(4, 0, **queues)
    for each in answer["queues"].values():
        each["rests"] = True
    return {**answer, "brakes": [{"brake": name, "stage": stage} for name, stage in brakes]}


@pytest.mark.parametrize(
    ("answers", "brakes"),
    [
        ({"a": braked(("bank", "on"), ("mail", "easing"), orders=0)}, "'bank'"),
        ({"a": braked(("mail", "on"), orders=0), "b": braked(("bank", "on"), orders=0)}, "'bank', 'mail'"),
        ({"a": braked(("bank", "on"), orders=0), "b": worker(4, 0, orders=-1)}, "'bank'"),
        ({"a": braked(("bank", "on"), orders=0), "b": worker(4, 0, orders=0)}, None),
        ({"a": braked(("bank", "easing"), orders=0)}, None),
    ],
    ids=["one", "two", "paused elsewhere", "polled elsewhere", "easing"],
)
def test_a_queue_that_rests_for_a_brake_says_so(answers, brakes):
    why = f"for brake {brakes}, and the queue is polled seldom meanwhile" if brakes else None
    assert work_of("orders", answers).why_waiting() == why


def test_a_worker_of_an_older_release_tells_less():
    answers = {"a": {"slots": 1, "busy": 0, "queues": {"q": {"paused": False, "held": 0}}}}
    assert work_of("q", answers) == QueueWork(workers=1, slots=1, free=1, others={})


QUEUES = {"queues": {"q": {"held": 2, "running": 1, "paused": False}}, "slots": 4, "busy": 1}
RUN = {"message_id": "m", "began": 5.0}


@pytest.fixture
def ask(monkeypatch):
    """`ask(*answers)` to commands, in order; exceptions are raised."""

    def answer(*given):
        given = iter(given)
        answer.asked = []

        def one(_app, command, _timeout, nodes=(), **_):
            answer.asked.append((command, list(nodes)))
            if isinstance(found := next(given), Exception):
                raise found
            return found

        monkeypatch.setattr(invocation, "ask", one)
        monkeypatch.setattr(invocation, "is_controlled", lambda _app: True)

    return answer


@pytest.mark.parametrize("error", [CommandNotSentError, OperationalError, OSError])
def test_workers_that_cannot_be_asked_are_as_they_were(ask, error):
    ask({"a@h": {}}, error("no answer"), {})
    clock = FakeClock()
    workers = WorkerAnswers(object(), 1.0, clock)
    seen = []
    for _ in range(3):
        seen.append(workers.add_to(Status([])))
        clock.advance(9)
    assert [dict(each.workers) for each in seen] == [{"a@h": {}}, {"a@h": {}}, {}]
    assert [each.workers_age_seconds for each in seen] == [0, 9, 0]
    assert "cannot be asked: no answer" in seen[1].notes[0]


def test_a_worker_that_vanished_stays_for_minutes_with_its_runs(ask):
    clock = FakeClock()
    both, one = {"a@h": QUEUES, "b@h": QUEUES}, {"b@h": QUEUES}
    held = {"a@h": {"held": [RUN]}, "b@h": {"error": "KeyError('sqs_held')"}}
    ask(both, held, one, {}, one, {})
    workers = WorkerAnswers(object(), 1.0, clock, with_runs=True)
    empty = Status([QueueStatus(QueueDepth("q", 1, 5, 0))])
    assert workers.add_to(empty).queues[0].work.held == 4
    assert workers.requests == 2 * 2 * REQUESTS_OF_A_COMMAND
    clock.advance(40)
    taken = workers.add_to(empty)
    assert taken.workers_age_seconds == 0
    assert (dict(taken.silent), list(taken.workers)) == ({"a@h": 40}, ["b@h"])
    assert taken.runs == {"a@h": [RUN], "b@h": ()}
    assert taken.queues[0].work.held == 2, "what a silent worker held is hidden"
    assert ask.asked[1] == ("sqs_held", ["a@h", "b@h"]), "an answer of each, without waiting for others"
    clock.advance(MAX_SILENT_SECONDS)
    assert not workers.add_to(empty).silent
