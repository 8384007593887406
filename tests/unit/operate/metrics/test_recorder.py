"""Every event is counted once, under labels that are few."""

from __future__ import annotations

import pytest

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryFacts, emit
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.recorder import Recorder

FACTS = DeliveryFacts("q", "m", 1, 0.0, "tasks.add", "t")


def counted(series, metric):
    return {labels: value for labels, value in series.counters[metric].read().items() if value}


def test_losses_and_dead_letters_begin_at_zero(series, recorder):
    zero = {("tasks.add", "q"): 0, ("unknown", "q"): 0, ("tasks.add", "q.fifo"): 0, ("unknown", "q.fifo"): 0}
    assert series.counters[names.DEAD_LETTERED].read() == zero
    assert series.counters[names.LOST].read() == {("q",): 0, ("q.fifo",): 0}


def observed(series, metric):
    return {labels: sum(counts) for labels, (counts, _) in series.histograms[metric].read().items()}


@pytest.mark.parametrize(
    ("event", "metric", "expected"),
    [
        (events.ReceiveEnded("q", 10, 3), names.RECEIVED, {("q",): 3}),
        (events.Started(FACTS), names.ATTEMPTS, {("tasks.add", "q"): 1}),
        (events.Extended(FACTS, 60), names.EXTENSIONS, {("q",): 1}),
        (events.Lost(FACTS, "late"), names.LOST, {("q",): 1}),
        (events.DeadLettered(FACTS, "bad"), names.DEAD_LETTERED, {("tasks.add", "q"): 1}),
        (events.ReceiveEnded("q", 10, 10), names.RECEIVES, {("q", "full"): 1}),
        (events.ReceiveEnded("q", 10, 3), names.RECEIVES, {("q", "partial"): 1}),
        (events.ReceiveEnded("q", 1, 0), names.RECEIVES, {("q", "empty"): 1}),
        (events.SQSRequest("SendMessage", 0.1, "ok", "sqs-q"), names.COST, {("q",): 0.4e-6}),
        (events.SQSRequest("SendMessage", 0.1, "ok", "sqs-q.fifo"), names.COST, {("q.fifo",): 0.5e-6}),
        (events.SQSRequest("SendMessage", 0.1, "ok", "a-monitor"), names.COST, {("other",): 0.4e-6}),
        (events.SQSRequest("PutObject", 0.1, "ok"), names.COST, {}),
        (events.EventsDropped("a-monitor", 7), names.EVENTS_DROPPED, {(): 7}),
        (events.ReplyDropped(), names.REPLIES_DROPPED, {(): 1}),
        (
            events.DeliveryEnded(FACTS, "failed", 2.0, 1.0),
            names.TASKS,
            {("tasks.add", "q", "failed"): 1},
        ),
    ],
)
def test_an_event_is_counted(series, recorder, event, metric, expected):
    emit(event)
    assert counted(series, metric) == pytest.approx(expected)


def test_a_queue_that_is_added_and_one_that_is_cancelled(series):
    queues = {"sqs-q": "q"}
    recorder = Recorder(series, set(), lambda: dict(queues))
    recorder.start()
    queues["sqs-more"] = "more"
    emit(events.SQSRequest("ReceiveMessage", 0.1, "ok", "sqs-more"))
    emit(events.ReceiveEnded("more", 10, 0))
    assert counted(series, names.COST) == {("more",): pytest.approx(0.4e-6)}
    del queues["sqs-q"]
    assert [labels for labels, _ in series.read_gauge(names.LAST_RECEIVE)] == [("more",)]
    recorder.stop()


@pytest.mark.parametrize(
    ("event", "metric", "expected"),
    [
        (events.DeliveryEnded(FACTS, "failed", 2.0, 1.0), names.HELD_TIME, {("q",): 1}),
        (
            events.DeliveryEnded(FACTS, "failed", 2.0, 1.0),
            names.RUNS,
            {("tasks.add", "q", "failed"): 1},
        ),
        (events.DeliveryEnded(FACTS, "released", 2.0, None), names.RUNS, {}),
        (events.SettlementEnded(FACTS, 0.1), names.SETTLE_TIME, {("q",): 1}),
        (events.ExtensionEnded("q", 0.1), names.HEARTBEAT_LAG, {("q",): 1}),
        (events.SQSRequest("PutObject", 0.1, "ok"), names.REQUESTS, {("PutObject", "other", "ok"): 1}),
        (events.Started(FACTS), names.QUEUE_TIME, {}),
        (events.Started(DeliveryFacts("q", "m", 2, 0.0, sent=1.0)), names.QUEUE_TIME, {}),
        (events.Started(DeliveryFacts("q", "m", 1, 0.0, sent=1.0)), names.QUEUE_TIME, {("q",): 1}),
    ],
)
def test_a_duration_is_observed(series, recorder, event, metric, expected):
    emit(event)
    assert observed(series, metric) == expected


def test_a_name_that_the_worker_does_not_have_is_no_label(series, recorder):
    for name in ("evil-1", "evil-2", None):
        emit(events.Started(DeliveryFacts("q", "m", 1, 0.0, name)))
    assert counted(series, names.ATTEMPTS) == {("unknown", "q"): 3}


def test_retries_are_waited_for_until_they_are_back(series, recorder, clock):
    for seconds in (30, 10, 20):
        emit(events.Hidden(FACTS, seconds))
        emit(events.Hidden(FACTS, seconds, kept=True))  # for no retry
    emit(events.Parked(FACTS, 40))  # for its ETA
    waiting, parked = [], []
    for _ in range(3):
        waiting += series.read_gauge(names.RETRIES_WAITING)
        parked += series.read_gauge(names.PARKED)
        clock.advance(15)
    assert waiting == [(("q",), 3), (("q",), 2), (("q",), 0)]
    assert parked == [(("q",), 1)] * 3
    assert series.read_gauge(names.PARKED) == [(("q",), 0)]


def test_the_last_answer_to_a_receive_is_known_and_at_first_the_workers_start(series, recorder, clock):
    start = clock.wall()
    clock.advance(5)
    assert series.read_gauge(names.LAST_RECEIVE) == [(("q",), start), (("q.fifo",), start)]
    emit(events.ReceiveEnded("q", 1, 0))
    assert series.read_gauge(names.LAST_RECEIVE)[0] == (("q",), start + 5)


def test_who_has_stopped_costs_nothing_and_may_start_and_stop_twice(recorder):
    recorder.start()
    assert events.DeliveryEnded.is_wanted()
    recorder.stop()
    recorder.stop()
    assert not events.DeliveryEnded.is_wanted()
