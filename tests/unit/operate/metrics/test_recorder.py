"""Every event is counted once, under labels that are few."""

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
        (events.SQSRequest("SendMessage", 0.1, "ok", "another"), names.COST, {("other",): 0.4e-6}),
        (events.SQSRequest("SendMessage", 0.1, "ok", "c-celeryev-1"), names.COST, {("monitor",): 0.4e-6}),
        (events.SQSRequest("ListQueues", 0.1, "ok", "c-pidbox-"), names.COST, {("control",): 0.4e-6}),
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
    ],
)
def test_a_duration_is_observed(series, recorder, event, metric, expected):
    emit(event)
    assert observed(series, metric) == expected


def test_a_name_that_the_worker_does_not_have_is_no_label(series, recorder):
    for name in ("evil-1", "evil-2", None):
        emit(events.Started(DeliveryFacts("q", "m", 1, 0.0, name)))
    assert counted(series, names.ATTEMPTS) == {("unknown", "q"): 3}


def test_messages_are_hidden_until_they_are_back(series, recorder, clock):
    for seconds in (30, 10, 20):
        emit(events.Hidden(FACTS, seconds))
    read = []
    for _ in range(3):
        read += series.read_gauge(names.HIDDEN)
        clock.advance(15)
    assert read == [(("q", "retry"), 3), (("q", "retry"), 2), (("q", "retry"), 0)]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (events.Hidden(FACTS, 5), "retry"),
        (events.Hidden(FACTS, 5, kept=True), "kept"),
        (events.Parked(FACTS, 5), "eta"),
        (events.Parked(FACTS, 5, "key"), "key"),
        (events.Renewed(FACTS, 5, "rate"), "rate"),
        (events.Released(FACTS, 5), "released"),
    ],
)
def test_a_hidden_message_has_its_cause(series, recorder, event, cause):
    emit(event)
    assert series.read_gauge(names.HIDDEN) == [(("q", cause), 1)]


def lateness(series):
    """Sums and numbers by kind."""
    read = series.histograms[names.START_LATENESS].read()
    return {kind: (total, sum(counts)) for (_, kind), (counts, total) in read.items()}


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"sent": -7.0}, "first"),
        ({"sent": -99.0, "eta": -7.0, "attempt": 1}, "eta"),
        ({"sent": -7.0, "attempt": 2}, "retry"),  # Celery has published it
        ({"sent": -99.0, "eta": -7.0, "attempt": 2}, "retry"),
    ],
)
def test_a_run_is_as_late_as_it_began_after_it_was_to(series, recorder, clock, facts, kind):
    now = clock.wall()
    times = {name: value if name == "attempt" else now + value for name, value in facts.items()}
    emit(events.Started(DeliveryFacts("q", "m", 1, 0.0, **times)))
    assert lateness(series) == {kind: (7.0, 1)}


def test_a_clock_that_is_behind_makes_no_run_early(series, recorder, clock):
    emit(events.Started(DeliveryFacts("q", "m", 1, 0.0, sent=clock.wall() + 5)))
    assert lateness(series) == {"first": (0.0, 1)}


def test_a_retry_is_late_by_what_passed_since_this_worker_let_it_come_back(series, recorder, clock):
    again = DeliveryFacts("q", "m", 2, 0.0, "tasks.add", sent=1.0, attempt=2)
    emit(events.Hidden(FACTS, 10))
    clock.advance(13)
    emit(events.Started(again))
    assert lateness(series) == {"retry": (3.0, 1)}
    emit(events.Started(again))  # whoever hid it since
    emit(events.Hidden(FACTS, 10, kept=True))
    emit(events.Started(again))
    assert lateness(series) == {"retry": (3.0, 1)}


def test_of_many_hidden_messages_the_first_are_forgotten(series, recorder, monkeypatch):
    monkeypatch.setattr("celery_sqs_visibility.operate.metrics.recorder.MAX_DUE", 2)
    for name in "abc":
        emit(events.Hidden(DeliveryFacts("q", name, 1, 0.0), 0))
    for name in "abc":
        emit(events.Started(DeliveryFacts("q", name, 2, 0.0)))
    assert lateness(series) == {"retry": (0.0, 2)}


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
